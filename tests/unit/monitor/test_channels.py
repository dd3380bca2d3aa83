"""Notices reach a log, a web server and a mail server; failures raise NoticeError."""

import hmac
import json
import logging
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import cast
from urllib.parse import parse_qs, urlsplit

import pytest

from tianzhou.cli.commands.tls import make_certificates
from tianzhou.errors import ConfigError
from tianzhou.monitor.channels import channels_of
from tianzhou.monitor.notices import LANGUAGES, Notice, NoticeError

NOTICE = Notice("backlog", "open", "T", "T_pay", "T_orders", 150, 100, 1_700_000_000_000, "why")


def send(channels: str) -> None:
    """Deliver the notice to each channel."""
    for channel in channels_of(channels):
        channel.send(NOTICE)


@contextmanager
def web_server(
    status: int = 200, answer: bytes = b"", location: str = ""
) -> Generator[tuple[str, list[dict[str, object]]]]:
    """A server with one answer; yields its address and what it received, `path` included."""
    received: list[dict[str, object]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            received.append(body | {"path": self.path})
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.end_headers()
            self.wfile.write(answer)

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
        send("log")
    assert "backlog of group T_pay on topic T_orders: 150, above 100; why" in caplog.text


def test_a_webhook_receives_json() -> None:
    with web_server() as (url, received):
        send(url)
    assert received[0]["group"] == "T_pay"
    assert received[0]["text"] == NOTICE.subject()


def test_a_mail_is_sent_to_all_receivers() -> None:
    with mail_server() as (port, server):
        send(f"smtp://127.0.0.1:{port}?from=a@x.org&to=b@x.org,c@x.org")
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
        send(url)
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
            send(url)
    assert server.mails == []
    assert not [command for _, command in server.commands() if command not in ("EHLO", "STARTTLS")]


def test_no_password_is_sent_to_a_server_without_tls() -> None:
    with mail_server() as (port, server):
        url = f"smtp://clerk:secret@127.0.0.1:{port}?from=a@x.org&to=b@x.org"
        with pytest.raises(NoticeError, match="offers no TLS, so it gets no password"):
            send(url)
    assert [command for _, command in server.commands() if command != "QUIT"] == ["EHLO"]
    assert server.mails == []


def test_the_error_of_a_channel_names_its_host() -> None:
    with web_server() as (gone, _):
        pass
    with pytest.raises(NoticeError, match="webhook 127"):
        send(gone)
    with pytest.raises(NoticeError, match="e-mail by 127"):
        send("smtp://127.0.0.1:1?from=a@x.org&to=b@x.org")


def test_a_webhook_that_does_not_answer_2xx_has_not_got_the_notice() -> None:
    with web_server(500) as (url, _), pytest.raises(NoticeError, match="HTTP status 500"):
        send(url)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(status: int) -> None:
    with (
        web_server() as (target, received),
        web_server(status, location=target) as (url, _),
        pytest.raises(NoticeError, match=f"HTTP status {status} .redirects are not followed"),
    ):
        send(url)
    assert received == []


# -- robots ----------------------------------------------------------------------------------------

ACCEPTED = {"wecom": b'{"errcode": 0}', "dingtalk": b'{"errcode": 0}', "feishu": b'{"code": 0}'}
REJECTED = {
    "wecom": b'{"errcode": 93000, "errmsg": "invalid key"}',
    "dingtalk": b'{"errcode": 310000, "errmsg": "sign not match"}',
    "feishu": b'{"code": 19021, "msg": "sign match fail"}',
}


@pytest.mark.parametrize("kind", sorted(ACCEPTED))
def test_a_robot_has_the_notice_if_its_body_says_so(kind: str) -> None:
    with web_server(answer=ACCEPTED[kind]) as (url, received):
        send(f"{kind}+{url}")
    assert NOTICE.subject() in json.dumps(received[0], ensure_ascii=False)


@pytest.mark.parametrize("kind", sorted(REJECTED))
def test_a_robot_that_answers_200_may_have_rejected_the_notice(kind: str) -> None:
    with (
        web_server(answer=REJECTED[kind]) as (url, _),
        pytest.raises(NoticeError, match=f"{kind}: rejected with .*(invalid key|sign)"),
    ):
        send(f"{kind}+{url}")


@pytest.mark.parametrize("kind", sorted(REJECTED))
@pytest.mark.parametrize("answer", [b"", b"<html>", b"[]", b"{}", b'"errcode"'])
def test_an_answer_that_is_not_of_a_robot_is_a_failure(kind: str, answer: bytes) -> None:
    with (
        web_server(answer=answer) as (url, _),
        pytest.raises(NoticeError, match=f"{kind}: the answer is not that of a robot"),
    ):
        send(f"{kind}+{url}")


def test_a_notice_to_dingtalk_is_signed_and_the_secret_is_not_sent() -> None:
    with web_server(answer=ACCEPTED["dingtalk"]) as (url, received):
        send(f"dingtalk+{url}?access_token=T&secret=SEC1")
    path = str(received[0]["path"])
    given = parse_qs(urlsplit(path).query)
    stamp = given["timestamp"][0]
    digest = hmac.new(b"SEC1", f"{stamp}\nSEC1".encode(), sha256).digest()
    assert given["sign"] == [b64encode(digest).decode()]
    assert given["access_token"] == ["T"]
    assert len(stamp) == 13
    assert "SEC1" not in path


def test_a_notice_to_feishu_is_signed_and_the_secret_is_not_sent() -> None:
    with web_server(answer=ACCEPTED["feishu"]) as (url, received):
        send(f"feishu+{url}?secret=SEC1")
    stamp = received[0]["timestamp"]
    digest = hmac.new(f"{stamp}\nSEC1".encode(), b"", sha256).digest()
    assert received[0]["sign"] == b64encode(digest).decode()
    assert "SEC1" not in str(received[0]["path"])


def test_a_notice_to_wecom_has_at_most_4096_bytes() -> None:
    long = replace(NOTICE, detail="\n".join(["长的信息"] * 1000))
    with web_server(answer=ACCEPTED["wecom"]) as (url, received):
        (channel,) = channels_of(f"wecom+{url}")
        channel.send(long)
    (text,) = cast("dict[str, str]", received[0]["markdown"]).values()
    assert 4_000 < len(text.encode()) <= 4_096


@pytest.mark.parametrize(
    ("host", "kind"),
    [
        ("https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=K", "_wecom"),
        ("https://oapi.dingtalk.com/robot/send?access_token=T", "_dingtalk"),
        ("https://open.feishu.cn/open-apis/bot/v2/hook/H", "_feishu"),
        ("https://hooks.example.org/x", "_webhook"),
    ],
)
def test_the_kind_follows_from_the_host(host: str, kind: str) -> None:
    (channel,) = channels_of(host)
    assert channel.deliver.__qualname__.startswith(kind)


# -- languages -------------------------------------------------------------------------------------


def test_a_notice_is_in_the_language_of_its_channel() -> None:
    with web_server() as (url, received):
        send(f"{url} {url}/b#zh")
    assert received[0]["text"] == "backlog of group T_pay on topic T_orders: 150, above 100"
    assert received[1]["text"] == "消费组 T_pay 在主题 T_orders 的消息堆积：150，超过阈值 100"  # noqa: RUF001
    assert "#" not in str(received[1]["path"])


@pytest.mark.parametrize("event", ["open", "repeat", "recovered"])
@pytest.mark.parametrize("kind", ["backlog", "dlq", "other"])
def test_every_notice_has_words_in_every_language(kind: str, event: str) -> None:
    notice = replace(NOTICE, kind=kind, event=event)
    texts = {notice.subject(language) for language in LANGUAGES}
    assert len(texts) == len(LANGUAGES)
    assert all("T_pay" in text and "150" in text for text in texts)


def test_a_language_without_notices_is_rejected() -> None:
    with pytest.raises(ConfigError, match="no notices in 'fr'; known are en, zh"):
        channels_of("log#fr")


def test_the_key_of_a_channel_hides_its_address() -> None:
    (channel,) = channels_of("https://hooks.example.org/x?token=SECRET#zh")
    (other,) = channels_of("https://hooks.example.org/x?token=OTHER")
    assert channel.key != other.key
    assert "SECRET" not in repr(channel)


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
        channels_of(text)
    assert "secret" not in str(caught.value)
