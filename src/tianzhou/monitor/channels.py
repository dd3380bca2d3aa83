"""Notifiers of alarms: log, webhook, e-mail.

    log
    https://hooks.example.org/alarms                              JSON by POST
    smtp://user:password@mail.example.org:587?from=a@example.org&to=b@example.org,c@example.org

`smtps://` uses TLS from the start; `smtp://` uses STARTTLS if the server offers it, and sends no
password otherwise. Certificates must be signed by a CA that the machine trusts, or by one in the
file of the variable SSL_CERT_FILE. A notifier is a function that delivers a `Notice` or raises
NoticeError.
"""

import json
import logging
import smtplib
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from tianzhou.errors import ConfigError, TianzhouError

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0


class NoticeError(TianzhouError):
    """A notice was not delivered."""

    retriable = True


@dataclass(frozen=True, slots=True)
class Notice:
    """An event of an alarm."""

    kind: str
    """backlog or dlq."""
    event: str
    """open, repeat or recovered."""
    tenant: str
    group: str
    topic: str
    value: int
    threshold: int
    at_ms: int
    detail: str = ""

    @property
    def subject(self) -> str:
        """A summary in one line."""
        what = {"backlog": "backlog", "dlq": "dead letters"}.get(self.kind, self.kind)
        state = "recovered" if self.event == "recovered" else "above"
        again = " (again)" if self.event == "repeat" else ""
        return (
            f"{what} of group {self.group} on topic {self.topic}: {self.value}, "
            f"{state} {self.threshold}{again}"
        )


Notifier = Callable[[Notice], None]


def notifiers(text: str) -> list[Notifier]:
    """The notifiers that a text names, separated by spaces. Raises ConfigError."""
    return [_notifier(each) for each in text.split()]


def notify_all(notice: Notice, to: Iterable[Notifier]) -> None:
    """Deliver a notice to all notifiers. Raises NoticeError if any fails; the others have it."""
    failures: list[str] = []
    for notifier in to:
        try:
            notifier(notice)
        except NoticeError as e:
            failures.append(str(e))
    if failures:
        raise NoticeError("; ".join(failures))


def _notifier(text: str) -> Notifier:
    if text == "log":
        return to_log
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as e:
        raise ConfigError(f"notifier {_shown(text)}: {e}") from e
    if parts.scheme in ("http", "https") and parts.hostname:
        return webhook(text)
    if parts.scheme in ("smtp", "smtps") and parts.hostname:
        given = parse_qs(parts.query)
        receivers = [each for value in given.get("to", []) for each in value.split(",") if each]
        senders = given.get("from", [])
        if not receivers or len(senders) != 1:
            raise ConfigError(f"notifier {_shown(text)}: ?from=ADDRESS&to=ADDRESS,... is needed")
        port = port or (465 if parts.scheme == "smtps" else 25)
        return smtp(parts, port, senders[0], receivers)
    raise ConfigError(f"notifier {_shown(text)}: log, http(s)://... or smtp(s)://... is expected")


def _shown(text: str) -> str:
    """Without the password."""
    head, found, tail = text.rpartition("@")
    return f"{head.partition('://')[0]}://...@{tail}" if found and "://" in head else text


# -- kinds -----------------------------------------------------------------------------------------


def to_log(notice: Notice) -> None:
    """Write a notice to the log of this program."""
    level = logging.INFO if notice.event == "recovered" else logging.WARNING
    log.log(level, "alarm: %s%s", notice.subject, f"; {notice.detail}" if notice.detail else "")


def webhook(url: str) -> Notifier:
    """A notifier that POSTs JSON: the fields of the notice, and its summary as `text`."""

    def send(notice: Notice) -> None:
        body = json.dumps(asdict(notice) | {"text": notice.subject}, ensure_ascii=False).encode()
        request = urllib.request.Request(  # noqa: S310 - only http and https get here
            url, data=body, headers={"Content-Type": "application/json"}, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S):  # noqa: S310 - as above
                pass
        except (urllib.error.URLError, OSError, ValueError) as e:
            raise NoticeError(f"webhook {urlsplit(url).hostname}: {e}") from e

    return send


def smtp(server_url: SplitResult, port: int, sender: str, receivers: list[str]) -> Notifier:
    """A notifier that sends one e-mail per notice."""
    host, tls_first = str(server_url.hostname), server_url.scheme == "smtps"
    user, password = unquote(server_url.username or ""), unquote(server_url.password or "")

    def connect() -> smtplib.SMTP:
        if tls_first:
            context = ssl.create_default_context()
            return smtplib.SMTP_SSL(host, port, timeout=TIMEOUT_S, context=context)
        return smtplib.SMTP(host, port, timeout=TIMEOUT_S)

    def send(notice: Notice) -> None:
        mail = EmailMessage()
        mail["Subject"] = notice.subject
        mail["From"] = sender
        mail["To"] = ", ".join(receivers)
        at = datetime.fromtimestamp(notice.at_ms / 1000, UTC).isoformat(timespec="seconds")
        mail.set_content(f"{notice.subject}\n\n{at}\n\n{notice.detail}\n")
        try:
            with connect() as server:
                is_encrypted = tls_first or _start_tls(server)
                if user and not is_encrypted:
                    raise NoticeError(
                        f"e-mail by {host}:{port}: the server offers no TLS, so it gets no password"
                    )
                if user:
                    server.login(user, password)
                server.send_message(mail)
        except (smtplib.SMTPException, OSError) as e:
            raise NoticeError(f"e-mail by {host}:{port}: {e}") from e

    return send


def _start_tls(server: smtplib.SMTP) -> bool:
    """Start TLS if the server offers it; returns whether the connection is encrypted."""
    server.ehlo()
    if not server.has_extn("starttls"):
        return False
    server.starttls(context=ssl.create_default_context())
    return True
