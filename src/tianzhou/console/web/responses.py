"""Making responses: JSON, CSV, redirects, cookies, ETags, the notice after a change."""

import base64
import csv
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, cast

import msgspec
from sqlalchemy import Connection
from starlette.responses import RedirectResponse, Response

from tianzhou.console.accounts import audit
from tianzhou.console.text import Text
from tianzhou.console.web.ask import Ask

NOTICE = "tianzhou_notice"
"""The cookie with the sentence that the next page shows."""
_NOTICE_MAX = 2000
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def encode(value: object) -> bytes:
    """JSON of a struct; texts in English."""
    return msgspec.json.encode(value, enc_hook=str)


def is_fragment(ask: Ask) -> bool:
    """Whether htmx asks for the inner part only."""
    return ask.headers.get("hx-target", "") == "main#page" and "hx-request" in ask.headers


async def record(ask: Ask, verb: str, subject: str, **values: Any) -> int:  # noqa: ANN401 - columns of the audit log
    """Write a row of the audit log about this request."""
    token = ask.caller.token
    person = ask.caller.person
    row = {
        "person": person.login if person is not None else "",
        "token": token.name if token is not None else "",
        "ip": ask.ip, "agent": ask.agent, "verb": verb, "subject": subject, **values,
    }  # fmt: skip
    row["cluster"] = row.get("cluster") or ask.path.get("cluster", "")
    now_ms = ask.now_ms

    def write(connection: Connection) -> int:
        return audit.record(connection, now_ms, **row)

    return await ask.database.write(write)


def see_other(ask: Ask, where: str) -> Response:
    """Go on at an address below the root."""
    root = ask.console.settings.root_path
    return RedirectResponse(f"{root}{where}", status_code=HTTPStatus.SEE_OTHER)


def own_path(text: str) -> str:
    """The address to go on at that a query names, if it is one of ours; else the first page."""
    is_own = text.startswith("/") and not text.startswith(("//", "/\\"))
    is_plain = text.isprintable() and "\\" not in text and len(text) <= _NOTICE_MAX
    return text if is_own and is_plain else "/"


def set_cookie(ask: Ask, name: str, value: str, *, max_age_s: int | None) -> str:
    """A `Set-Cookie` header."""
    settings = ask.console.settings
    age = "" if max_age_s is None else f"; Max-Age={max_age_s}"
    secure = "; Secure" if settings.is_https else ""
    return f"{name}={value}; Path=/; HttpOnly; SameSite=Lax{secure}{age}"


def csv_response(rows: Sequence[msgspec.Struct], name: str) -> Response:
    """Rows as CSV. Cells that a spreadsheet would take for a formula get a quote in front."""
    out = io.StringIO()
    writer = csv.writer(out)
    for number, row in enumerate(rows):
        plain = cast("dict[str, object]", msgspec.to_builtins(row, enc_hook=str))
        if number == 0:
            writer.writerow(list(plain))
        writer.writerow([safe_cell(each) for each in plain.values()])
    disposition = f'attachment; filename="{name}"'
    return Response(
        out.getvalue(), media_type="text/csv", headers={"Content-Disposition": disposition}
    )


def safe_cell(value: object) -> str | int | float:
    """A value as a cell of CSV; text that looks like a formula gets a quote in front."""
    if value is None:
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"'{text}" if text.startswith(_FORMULA) else text


def html(text: str, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(text, status_code=status, media_type="text/html", headers=headers)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:20]


def etag(mark: str) -> str:
    return f'W/"{mark}"'


def is_known(ask: Ask, mark: str) -> bool:
    return mark in ask.headers.get("if-none-match", "")


def not_modified(mark: str) -> Response:
    return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"ETag": etag(mark)})


def notice_cookie(notice: Text) -> str:
    values = {name: str(each) for name, each in notice.values.items()}
    encoded = base64.urlsafe_b64encode(msgspec.json.encode([notice.key, values])).decode()
    return encoded if len(encoded) <= _NOTICE_MAX else ""


def notice_of(ask: Ask) -> Text | None:
    cookie = ask.cookies.get(NOTICE, "")
    if not cookie or len(cookie) > _NOTICE_MAX:
        return None
    try:
        key, values = msgspec.json.decode(
            base64.urlsafe_b64decode(cookie), type=tuple[str, dict[str, str]]
        )
        text = Text(key, **values)
        str(text)
    except (ValueError, KeyError, IndexError, AttributeError, msgspec.DecodeError):
        return None
    return text
