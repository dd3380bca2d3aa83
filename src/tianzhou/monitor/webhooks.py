"""Notices by HTTP: JSON to a webhook, markdown or text to the robots of WeCom, DingTalk and Feishu.

The robots answer 200 also to what they reject; whether a notice was accepted is in the body:

    WeCom      {"errcode": 0}     markdown of at most 4,096 bytes
    DingTalk   {"errcode": 0}     signed: base64 HMAC-SHA256 of "timestamp\nsecret" by the secret
    Feishu     {"code": 0}        signed: base64 HMAC-SHA256 of "" by "timestamp\nsecret"

The kind is that of the host, or written before the address: `wecom+https://proxy/...`. Redirects
are not followed: an address that is permitted must not lead to one that is not.
"""

import base64
import hmac
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict
from hashlib import sha256
from typing import IO, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from tianzhou.monitor.notices import TIMEOUT_S, Notice, NoticeError

WECOM, DINGTALK, FEISHU = "wecom", "dingtalk", "feishu"
_HOSTS = {
    "qyapi.weixin.qq.com": WECOM,
    "oapi.dingtalk.com": DINGTALK,
    "open.feishu.cn": FEISHU,
}
_ANSWER_BYTES_MAX = 64 * 1024
_WECOM_BYTES_MAX = 4_096
_TEXT_CHARACTERS_MAX = 15_000

Send = Callable[[Notice, str], None]


def sender(kind: str, url: str) -> Send | None:
    """How to send notices to an address; None if there is no such kind."""
    host = urlsplit(url).hostname or ""
    made = {"": _webhook, WECOM: _wecom, DINGTALK: _dingtalk, FEISHU: _feishu}.get(
        kind or _HOSTS.get(host, "")
    )
    return None if made is None else made(url)


# -- kinds -----------------------------------------------------------------------------------------


def _webhook(url: str) -> Send:
    def send(notice: Notice, language: str) -> None:
        _post("webhook", url, asdict(notice) | {"text": notice.subject(language)})

    return send


def _wecom(url: str) -> Send:
    def send(notice: Notice, language: str) -> None:
        text = _cut(_markdown(notice, language), _WECOM_BYTES_MAX)
        body = {"msgtype": "markdown", "markdown": {"content": text}}
        _require_zero(WECOM, _post(WECOM, url, body), "errcode", "errmsg")

    return send


def _dingtalk(url: str) -> Send:
    address, secret = _without_secret(url)

    def send(notice: Notice, language: str) -> None:
        subject = notice.subject(language)
        text = _markdown(notice, language)[:_TEXT_CHARACTERS_MAX]
        body = {"msgtype": "markdown", "markdown": {"title": subject, "text": text}}
        target = address
        if secret:
            stamp = str(time.time_ns() // 1_000_000)
            sign = _signature(secret, f"{stamp}\n{secret}")
            target += ("&" if "?" in address else "?") + urlencode(
                {"timestamp": stamp, "sign": sign}
            )
        _require_zero(DINGTALK, _post(DINGTALK, target, body), "errcode", "errmsg")

    return send


def _feishu(url: str) -> Send:
    address, secret = _without_secret(url)

    def send(notice: Notice, language: str) -> None:
        text = _plain(notice, language)[:_TEXT_CHARACTERS_MAX]
        body: dict[str, object] = {"msg_type": "text", "content": {"text": text}}
        if secret:
            stamp = str(int(time.time()))
            body |= {"timestamp": stamp, "sign": _signature(f"{stamp}\n{secret}", "")}
        _require_zero(FEISHU, _post(FEISHU, address, body), "code", "msg")

    return send


def _signature(key: str, text: str) -> str:
    return base64.b64encode(hmac.new(key.encode(), text.encode(), sha256).digest()).decode()


def _without_secret(url: str) -> tuple[str, str]:
    """An address without the parameter `secret`, and its value."""
    parts = urlsplit(url)
    given = parse_qsl(parts.query, keep_blank_values=True)
    secret = next((value for name, value in given if name == "secret"), "")
    rest = urlencode([(name, value) for name, value in given if name != "secret"])
    return urlunsplit(parts._replace(query=rest)), secret


def _plain(notice: Notice, language: str) -> str:
    return f"{notice.subject(language)}\n{notice.detail}".strip()


def _markdown(notice: Notice, language: str) -> str:
    # Samples of dead letters are data of others: quoted, they are no links or mentions.
    quoted = "".join(f"\n> {line}" for line in notice.detail.splitlines())
    return f"**{notice.subject(language)}**{quoted}"


def _cut(text: str, bytes_max: int) -> str:
    return text.encode()[:bytes_max].decode(errors="ignore")


# -- HTTP ------------------------------------------------------------------------------------------


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Reports a redirect as the error that it is."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any,  # noqa: ANN401 - as urllib has it
        newurl: str,
    ) -> None:  # fmt: skip
        return None


_opener = urllib.request.build_opener(_NoRedirect)


def _post(kind: str, url: str, body: object) -> bytes:
    """The body of the answer. Raises NoticeError unless the status is 2xx."""
    host = urlsplit(url).hostname
    request = urllib.request.Request(  # noqa: S310 - only http and https get here
        url,
        data=json.dumps(body, ensure_ascii=False).encode(),
        headers={"Content-Type": "application/json"},
        method="POST",
    )
    try:
        with _opener.open(request, timeout=TIMEOUT_S) as response:
            answer: bytes = response.read(_ANSWER_BYTES_MAX)
    except urllib.error.HTTPError as e:
        with e:
            where = " (redirects are not followed)" if 300 <= e.code < 400 else ""
            raise NoticeError(f"{kind} {host}: HTTP status {e.code}{where}") from e
    except (urllib.error.URLError, OSError, ValueError) as e:
        raise NoticeError(f"{kind} {host}: {e}") from e
    return answer


def _require_zero(kind: str, answer: bytes, code: str, reason: str) -> None:
    """Raises NoticeError unless the robot accepted the notice."""
    try:
        found = json.loads(answer)
        result = found[code]
    except (ValueError, KeyError, TypeError) as e:
        raise NoticeError(f"{kind}: the answer is not that of a robot: {answer[:100]!r}") from e
    if result != 0:
        raise NoticeError(f"{kind}: rejected with {code} {result}: {found.get(reason, '')}")
