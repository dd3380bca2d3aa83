"""Notices reach a log, a web server and a mail server; failures raise NoticeError."""

import json
import logging
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tianzhou.cli.commands.tls import make_certificates
from tianzhou.errors import ConfigError
from tianzhou.monitor.channels import Notice, NoticeError, notifiers, notify_all

NOTICE = Notice("backlog", "open", "T", "T_pay", "T_orders", 150, 100, 1_700_000_000_000, "why")


@contextmanager
def web_server(status: int = 200) -> Generator[tuple[str, list[dict[str, object]]]]:
    received: list[dict[str, object]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass(slots=True)
class MailServer:
    """A minimal SMTP server for one session, with TLS from the beginning or on request."""

    tls: ssl.SSLContext | None = None
    tls_first: bool = False
    said: list[tuple[bool, str]] = field(default_factory=list[tuple[bool, str]])
    """The lines of the client, each with whether it was encrypted."""
    mails: list[str] = field(default_factory=list[str])

    def serve(self, connection: socket.socket) -> None:
        is_hidden = self.tls_first
        if self.tls_first:
            connection = self._hidden(connection)
        self._put(connection, "220 here")
        while line := self._line(connection):
            command = line.split()[0].upper()
            self.said.append((is_hidden, line))
            if command == "EHLO":
                offers = ["STARTTLS"] if self.tls and not is_hidden else []
                offers += ["AUTH PLAIN"]
                lines = ["250-here", *(f"250-{each}" for each in offers)]
                self._put(connection, "\r\n".join([*lines, "250 HELP"]))
            elif command == "STARTTLS":
                self._put(connection, "220 begin")
                connection, is_hidden = self._hidden(connection), True
            elif command == "AUTH":
                self._put(connection, "235 welcome")
            elif command == "DATA":
                self._put(connection, "354 go on")
                self.mails.append("\n".join(iter(partial(self._line, connection), ".")))
                self._put(connection, "250 taken")
            elif command == "QUIT":
                self._put(connection, "221 bye")
                break
            else:
                self._put(connection, "250 ok")
        connection.close()

    def commands(self) -> list[tuple[bool, str]]:
        return [(is_hidden, line.split()[0].upper()) for is_hidden, line in self.said]

    def _hidden(self, connection: socket.socket) -> socket.socket:
        assert self.tls is not None
        return self.tls.wrap_socket(connection, server_side=True)

    def _put(self, connection: socket.socket, text: str) -> None:
        connection.sendall(f"{text}\r\n".encode())

    def _line(self, connection: socket.socket) -> str:
        """Byte by byte: bytes after STARTTLS must not be buffered here."""
        read = bytearray()
        while not read.endswith(b"\r\n"):
            byte = connection.recv(1)
            if not byte:
                return ""
            read += byte
        return read[:-2].decode()


@contextmanager
def mail_server(
    tls: ssl.SSLContext | None = None, *, tls_first: bool = False
) -> Generator[tuple[int, MailServer]]:
    """Serve one session, or one that breaks off."""
    server = MailServer(tls, tls_first)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with (
            connection,
            suppress(OSError),
        ):  # a client that does not trust the certificate disconnects
            server.serve(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1], server
    finally:
        thread.join(60)
        listener.close()


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    assert make_certificates(folder, ["127.0.0.1"]) == 0
    return folder


def server_tls(papers: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(papers / "server.pem", papers / "server.key")
    return context


def test_a_notice_is_written_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        notify_all(NOTICE, notifiers("log"))
    assert "backlog of group T_pay on topic T_orders: 150, above 100; why" in caplog.text


def test_a_webhook_receives_json() -> None:
    with web_server() as (url, received):
        notify_all(NOTICE, notifiers(url))
    assert received[0]["group"] == "T_pay"
    assert received[0]["text"] == NOTICE.subject


def test_a_mail_is_sent_to_all_receivers() -> None:
    with mail_server() as (port, server):
        notify_all(NOTICE, notifiers(f"smtp://127.0.0.1:{port}?from=a@x.org&to=b@x.org,c@x.org"))
    said = [line for _, line in server.said]
    assert "rcpt TO:<b@x.org>" in said
    assert "rcpt TO:<c@x.org>" in said
    (mail,) = server.mails
    assert "Subject: backlog of group T_pay" in mail


@pytest.mark.parametrize("kind", ["smtps", "smtp"])
def test_mails_and_passwords_are_encrypted_if_the_server_offers_tls(
    papers: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(papers / "ca.pem"))
    with mail_server(server_tls(papers), tls_first=kind == "smtps") as (port, server):
        url = f"{kind}://clerk:pass%40word@127.0.0.1:{port}?from=a@x.org&to=b@x.org"
        notify_all(NOTICE, notifiers(url))
    in_the_open = [command for is_hidden, command in server.commands() if not is_hidden]
    assert in_the_open == ([] if kind == "smtps" else ["EHLO", "STARTTLS"])
    secret = b64encode(b"\0clerk\0pass@word").decode()
    assert (True, f"AUTH PLAIN {secret}") in server.said
    (mail,) = server.mails
    assert "Subject: backlog of group T_pay" in mail


@pytest.mark.parametrize("kind", ["smtps", "smtp"])
def test_nothing_is_sent_to_a_server_with_an_untrusted_certificate(papers: Path, kind: str) -> None:
    with mail_server(server_tls(papers), tls_first=kind == "smtps") as (port, server):
        url = f"{kind}://clerk:secret@127.0.0.1:{port}?from=a@x.org&to=b@x.org"
        with pytest.raises(NoticeError, match=f"e-mail by 127.0.0.1:{port}: .*certificate"):
            notify_all(NOTICE, notifiers(url))
    assert server.mails == []
    assert not [command for _, command in server.commands() if command not in ("EHLO", "STARTTLS")]


def test_no_password_is_sent_to_a_server_without_tls() -> None:
    with mail_server() as (port, server):
        url = f"smtp://clerk:secret@127.0.0.1:{port}?from=a@x.org&to=b@x.org"
        with pytest.raises(NoticeError, match="offers no TLS, so it gets no password"):
            notify_all(NOTICE, notifiers(url))
    assert [command for _, command in server.commands() if command != "QUIT"] == ["EHLO"]
    assert server.mails == []


def test_a_failing_notifier_does_not_stop_the_others() -> None:
    with web_server(500) as (bad, _), web_server() as (good, received):
        with pytest.raises(NoticeError, match="500"):
            notify_all(NOTICE, notifiers(f"{bad} {good}"))
        assert len(received) == 1
    with pytest.raises(NoticeError, match="webhook 127"):
        notify_all(NOTICE, notifiers(good))
    with pytest.raises(NoticeError, match="e-mail by 127"):
        notify_all(NOTICE, notifiers("smtp://127.0.0.1:1?from=a@x.org&to=b@x.org"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("pigeon", "is expected"),
        ("ftp://x/y", "is expected"),
        ("smtp://u:secret@h?to=b@x.org", "from=ADDRESS"),
        ("http://h:port/", "Port"),
    ],
)
def test_the_error_of_an_invalid_notifier_hides_its_password(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        notifiers(text)
    assert "secret" not in str(caught.value)
