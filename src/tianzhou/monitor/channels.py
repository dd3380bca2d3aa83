"""Channels of alarms: log, webhook, chat robots, e-mail.

    log
    https://hooks.example.org/alarms                              JSON by POST
    https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=K        a robot of WeCom
    https://oapi.dingtalk.com/robot/send?access_token=T&secret=S  a robot of DingTalk
    https://open.feishu.cn/open-apis/bot/v2/hook/H?secret=S       a robot of Feishu
    smtp://user:password@mail.example.org:587?from=a@example.org&to=b@example.org,c@example.org

Each may end with `#zh` for Chinese notices. `smtps://` uses TLS from the start; `smtp://` uses
STARTTLS if the server offers it, and sends no password otherwise. Certificates must be signed by a
CA that the machine trusts, or by one in the file of the variable SSL_CERT_FILE.
"""

import logging
import smtplib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from hashlib import sha256
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from tianzhou.errors import ConfigError
from tianzhou.monitor import webhooks
from tianzhou.monitor.notices import LANGUAGES, TIMEOUT_S, Notice, NoticeError

log = logging.getLogger(__name__)

Send = Callable[[Notice, str], None]
"""Delivers a notice in a language. Raises NoticeError."""


@dataclass(frozen=True, slots=True)
class Channel:
    """Where notices go."""

    key: str
    """Identifies the channel in the database; a hash, since the address may hold a secret."""
    language: str
    deliver: Send

    def send(self, notice: Notice) -> None:
        """Deliver a notice. Raises NoticeError."""
        self.deliver(notice, self.language)


def channels_of(text: str) -> list[Channel]:
    """The channels that a text names, separated by spaces. Raises ConfigError."""
    return [_channel(each) for each in dict.fromkeys(text.split())]


def _channel(text: str) -> Channel:
    address, _, language = text.partition("#")
    if language and language not in LANGUAGES:
        raise ConfigError(
            f"channel {_shown(address)}: there are no notices in {language!r}; known are "
            f"{', '.join(LANGUAGES)}"
        )
    key = sha256(address.encode()).hexdigest()[:32]
    return Channel(key, language or LANGUAGES[0], _send_of(address))


def _send_of(text: str) -> Send:
    if text == "log":
        return to_log
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as e:
        raise ConfigError(f"channel {_shown(text)}: {e}") from e
    kind, _, scheme = parts.scheme.rpartition("+")
    if scheme in ("http", "https") and parts.hostname:
        made = webhooks.sender(kind, text.removeprefix(f"{kind}+"))
        if made is not None:
            return made
    if parts.scheme in ("smtp", "smtps") and parts.hostname:
        given = parse_qs(parts.query)
        receivers = [each for value in given.get("to", []) for each in value.split(",") if each]
        senders = given.get("from", [])
        if not receivers or len(senders) != 1:
            raise ConfigError(f"channel {_shown(text)}: ?from=ADDRESS&to=ADDRESS,... is needed")
        port = port or (465 if parts.scheme == "smtps" else 25)
        return smtp(parts, port, senders[0], receivers)
    raise ConfigError(f"channel {_shown(text)}: log, http(s)://... or smtp(s)://... is expected")


def _shown(text: str) -> str:
    """Without passwords and tokens."""
    scheme, found, rest = text.partition("://")
    if not found:
        return text
    host = rest.rpartition("@")[2]
    return f"{scheme}://...@{host.partition('?')[0]}" if "@" in rest else text.partition("?")[0]


# -- kinds -----------------------------------------------------------------------------------------


def to_log(notice: Notice, language: str) -> None:
    """Write a notice to the log of this program."""
    level = logging.INFO if notice.event == "recovered" else logging.WARNING
    detail = f"; {notice.detail}" if notice.detail else ""
    log.log(level, "alarm: %s%s", notice.subject(language), detail)


def smtp(server_url: SplitResult, port: int, sender: str, receivers: list[str]) -> Send:
    """Sends one e-mail per notice."""
    host, tls_first = str(server_url.hostname), server_url.scheme == "smtps"
    user, password = unquote(server_url.username or ""), unquote(server_url.password or "")

    def connect() -> smtplib.SMTP:
        if tls_first:
            context = ssl.create_default_context()
            return smtplib.SMTP_SSL(host, port, timeout=TIMEOUT_S, context=context)
        return smtplib.SMTP(host, port, timeout=TIMEOUT_S)

    def send(notice: Notice, language: str) -> None:
        mail, subject = EmailMessage(), notice.subject(language)
        mail["Subject"] = subject
        mail["From"] = sender
        mail["To"] = ", ".join(receivers)
        at = datetime.fromtimestamp(notice.at_ms / 1000, UTC).isoformat(timespec="seconds")
        mail.set_content(f"{subject}\n\n{at}\n\n{notice.detail}\n")
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
