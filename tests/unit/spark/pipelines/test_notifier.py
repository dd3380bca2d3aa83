"""Notices reach a log, a web server and a mail server; failures are told as such."""

import json
import logging
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tianzhou.errors import ConfigError
from tianzhou.spark.pipelines.notifier import Notice, NoticeError, notifiers, tell_all

NOTICE = Notice("backlog", "open", "T", "T_pay", "T_orders", 150, 100, 1_700_000_000_000, "why")


@contextmanager
def web_server(status: int = 200) -> Generator[tuple[str, list[dict[str, object]]]]:
    taken: list[dict[str, object]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", taken
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def mail_server() -> Generator[tuple[int, list[str]]]:
    """As much of SMTP as one mail needs."""
    taken: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rwb") as stream:
            stream.write(b"220 here\r\n")
            stream.flush()
            for line in stream:
                word = line[:4].upper()
                if word == b"DATA":
                    stream.write(b"354 go on\r\n")
                    stream.flush()
                    lines = list(iter(stream.readline, b".\r\n"))
                    taken.append(b"".join(lines).decode())
                taken.append(line.decode().strip())
                stream.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")
                stream.flush()
                if word == b"QUIT":
                    return

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1], taken
    finally:
        thread.join(10)
        listener.close()


def test_the_log_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        tell_all(NOTICE, notifiers("log"))
    assert "backlog of group T_pay on topic T_orders: 150, above 100; why" in caplog.text


def test_a_webhook_gets_json() -> None:
    with web_server() as (url, taken):
        tell_all(NOTICE, notifiers(url))
    assert taken[0]["group"] == "T_pay"
    assert taken[0]["text"] == NOTICE.subject


def test_a_mail_goes_to_everybody() -> None:
    with mail_server() as (port, taken):
        tell_all(NOTICE, notifiers(f"smtp://127.0.0.1:{port}?from=a@x.org&to=b@x.org,c@x.org"))
    text = "\n".join(taken)
    assert "rcpt TO:<b@x.org>" in text
    assert "rcpt TO:<c@x.org>" in text
    assert "Subject: backlog of group T_pay" in text


def test_one_that_fails_does_not_keep_the_others_from_it() -> None:
    with web_server(500) as (bad, _), web_server() as (good, taken):
        with pytest.raises(NoticeError, match="500"):
            tell_all(NOTICE, notifiers(f"{bad} {good}"))
        assert len(taken) == 1
    with pytest.raises(NoticeError, match="webhook 127"):
        tell_all(NOTICE, notifiers(good))
    with pytest.raises(NoticeError, match="e-mail by 127"):
        tell_all(NOTICE, notifiers("smtp://127.0.0.1:1?from=a@x.org&to=b@x.org"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pigeon", "is expected"),
        ("ftp://x/y", "is expected"),
        ("smtp://u:secret@h?to=b@x.org", "from=ADDRESS"),
        ("http://h:port/", "Port"),
    ],
)
def test_a_bad_notifier_is_refused_without_its_password(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        notifiers(text)
    assert "secret" not in str(caught.value)
