"""Bodies of requests: bounded, read as a form or as JSON, and turned into a struct."""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import TypeVar, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect, Request

from tianzhou.console.text import Text
from tianzhou.console.web.refusals import Invalid, Refusal

G = TypeVar("G", bound=msgspec.Struct)

BODY_MAX = 1024 * 1024
FIELDS_MAX = 200
VALUE_MAX = 256 * 1024
READ_S = 20.0
FORM = "application/x-www-form-urlencoded"
JSON = "application/json"


async def read(request: Request) -> bytes:
    """The body. Raises Refusal if it is too large or comes too slowly."""
    too_large = Refusal(
        Text("The request is larger than 1 MiB."), status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    )
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > BODY_MAX:
        raise too_large
    pieces = bytearray()
    try:
        async with asyncio.timeout(READ_S):
            async for piece in request.stream():
                pieces += piece
                if len(pieces) > BODY_MAX:
                    raise too_large
    except TimeoutError as e:
        text = Text("The body of the request did not arrive in time.")
        raise Refusal(text, status=HTTPStatus.REQUEST_TIMEOUT) from e
    except ClientDisconnect as e:
        raise Refusal(Text("The connection ended before the request.")) from e
    return bytes(pieces)


def fields_of(body: bytes, content_type: str) -> dict[str, object]:
    """The fields of a form or of a JSON object. Raises Refusal."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == FORM:
        return _form(body)
    if kind == JSON:
        try:
            decoded: object = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
            raise Refusal(Text("The body is not JSON: {why}", why=str(e))) from e
        if not isinstance(decoded, dict):
            raise Refusal(Text("The body must be a JSON object."))
        return {str(name): value for name, value in decoded.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    raise Refusal(
        Text("A change is sent as a form or as JSON, not as {kind}.", kind=kind[:80] or "?"),
        status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    )


def _form(body: bytes) -> dict[str, object]:
    try:
        pairs = parse_qsl(
            body.decode("utf-8"), keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict"
        )
    except ValueError as e:
        raise Refusal(Text("The form cannot be read: {why}", why=str(e))) from e
    fields: dict[str, object] = {}
    for name, value in pairs:
        if len(value) > VALUE_MAX:
            raise Refusal(Text("The field {name} is too long.", name=name[:80]))
        before = fields.get(name)
        if before is None:
            fields[name] = value
        elif isinstance(before, list):
            before.append(value)  # pyright: ignore[reportUnknownMemberType]
        else:
            fields[name] = [before, value]
    return fields


def given(fields: Mapping[str, object], kind: type[G], *, is_form: bool) -> G:
    """The fields as a struct; those that begin with "_" are the console's. Raises Invalid.

    In a form an empty field is one that is not given, and a field of a list may stand alone.
    """
    own = {name: value for name, value in fields.items() if not name.startswith("_")}
    hints = get_type_hints(kind)
    if is_form:
        own = {name: value for name, value in own.items() if value != ""}
        for name, value in own.items():
            if _is_list(hints.get(name)) and not isinstance(value, list):
                own[name] = [value]
    unknown = sorted(own.keys() - hints.keys())
    if unknown:
        raise Invalid(Text("There is no field {name}.", name=unknown[0][:80]), unknown[0])
    for name, value in own.items():
        if isinstance(value, str) and "\0" in value:
            raise Invalid(Text("The field {name} holds a null character.", name=name), name)
    try:
        return msgspec.convert(own, kind, strict=not is_form)
    except msgspec.ValidationError as e:
        reason, _, where = str(e).partition(" - at `$.")
        field = where.partition("`")[0].partition("[")[0]
        if "missing required field" in reason:
            field = reason.partition("`")[2].partition("`")[0]
            raise Invalid(Text("The field {name} is missing.", name=field), field) from e
        raise Invalid(Text("The field {name}: {why}", name=field or "?", why=reason), field) from e


def _is_list(hint: object) -> bool:
    return getattr(hint, "__origin__", None) in (list, tuple, set, frozenset)
