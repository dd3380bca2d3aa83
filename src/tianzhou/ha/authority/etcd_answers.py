"""What etcd's JSON gateway answers: its values, and its refusals; no I/O.

int64 are strings, keys and values base64, and fields that are zero are absent: no `succeeded` means
false, no `type` of an event PUT, no `TTL` of a renewal that the lease is gone. Streams (watch,
renewal) wrap each answer in {"result": ...}, with status 200, and their errors in {"error": ...}.

The form of errors differs between versions, and a proxy may answer with HTML:

    3.4     {"error":"etcdserver: no leader","message":"etcdserver: no leader","code":14}
    3.5     {"error":"etcdserver: no leader","code":14,"message":"etcdserver: no leader"}
    3.6     {"code":14,"message":"etcdserver: no leader","details":[]}
    stream  {"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}} (3.4, 3.5)
            {"error":{"code":14,"message":"etcdserver: no leader"}} (3.6)
"""

from enum import IntEnum
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from tianzhou.errors import AuthorityError, ProtocolError

_QUOTED_CHARACTERS = 200

Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
T = TypeVar("T")


class Header(msgspec.Struct, frozen=True):
    """Who answered, and what it knows."""

    cluster_id: str = ""
    member_id: str = ""
    revision: Natural = 0
    raft_term: Natural = 0


NO_HEADER = Header()


class KeyValue(msgspec.Struct, frozen=True):
    """One key."""

    key: bytes = b""
    value: bytes = b""
    create_revision: Natural = 0
    mod_revision: Natural = 0
    lease: str = "0"


class RangeAnswer(msgspec.Struct, frozen=True):
    """Keys of a range."""

    header: Header = NO_HEADER
    kvs: tuple[KeyValue, ...] = ()
    more: bool = False


class OperationAnswer(msgspec.Struct, frozen=True):
    """Of one operation of a transaction; only reads have one that matters here."""

    response_range: RangeAnswer | None = None


class TxnAnswer(msgspec.Struct, frozen=True):
    """Whether the compares held, and the answers of the branch that was carried out."""

    header: Header = NO_HEADER
    succeeded: bool = False
    responses: tuple[OperationAnswer, ...] = ()


class LeaseAnswer(msgspec.Struct, frozen=True):
    """A lease that was granted or renewed; without TTL it does not exist."""

    header: Header = NO_HEADER
    id: str = msgspec.field(name="ID", default="")
    ttl_s: Natural = msgspec.field(name="TTL", default=0)


class TokenAnswer(msgspec.Struct, frozen=True):
    """A login."""

    header: Header = NO_HEADER
    token: str = ""


class StatusAnswer(msgspec.Struct, frozen=True):
    """How a member sees itself; not linearizable."""

    header: Header = NO_HEADER
    version: str = ""
    leader: str = "0"
    errors: tuple[str, ...] = ()
    """Alarms: NOSPACE, CORRUPT."""


class Event(msgspec.Struct, frozen=True):
    """A change of a key."""

    type: str = "PUT"
    kv: KeyValue = KeyValue()


class WatchAnswer(msgspec.Struct, frozen=True):
    """One message of a watch: it began, it ended, or keys changed."""

    header: Header = NO_HEADER
    created: bool = False
    canceled: bool = False
    compact_revision: Natural = 0
    cancel_reason: str = ""
    events: tuple[Event, ...] = ()


class GrpcCode(IntEnum):
    """The codes that matter here."""

    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class Refusal(AuthorityError):
    """An error that etcd, or what stands in its place, answered."""

    def __init__(
        self,
        text: str,
        code: int = 0,
        *,
        had_no_effect: bool = False,
        is_lasting: bool = False,
        wants_login: bool = False,
    ) -> None:
        super().__init__(text)
        self.code = code
        """gRPC's; 0: the answer has none."""
        self.had_no_effect = had_no_effect
        """A transaction that got it was certainly not carried out, and never will be."""
        self.is_lasting = is_lasting
        """Every member would answer the same, now and in a second."""
        self.wants_login = wants_login
        """A new login may help."""


# -- decoding --------------------------------------------------------------------------------------


def decode(kind: type[T], body: bytes) -> T:
    """The answer in the body of a response with status 200. Raises ProtocolError."""
    try:
        return msgspec.json.decode(body, type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"no answer of etcd: {error}: {_quoted(body)}") from error


class _Streamed(msgspec.Struct, Generic[T], frozen=True):
    result: T | None = None
    error: Any = None


def decode_streamed(kind: type[T], document: bytes) -> T:
    """One answer of a stream. Raises ProtocolError, and Refusal if it is an error."""
    streamed: _Streamed[T] = decode(_Streamed[kind], document)  # type: ignore[valid-type]
    if streamed.error is not None:
        raise refusal(200, document)
    if streamed.result is None:
        raise ProtocolError(f"neither a result nor an error: {_quoted(document)}")
    return streamed.result


# -- refusals --------------------------------------------------------------------------------------

_LOGIN_TEXTS = ("invalid auth token", "user name is empty", "revision of auth store is old")
_NO_EFFECT_CODES = (
    GrpcCode.INVALID_ARGUMENT, GrpcCode.PERMISSION_DENIED, GrpcCode.FAILED_PRECONDITION,
    GrpcCode.UNIMPLEMENTED, GrpcCode.UNAUTHENTICATED,
)  # fmt: skip
_NO_EFFECT_STATUS = (400, 401, 403, 404, 405, 413)
_NO_EFFECT_TEXTS = (
    "etcdserver: no leader", "not capable", "not supported for learner", "too many requests",
    "database space exceeded",
)  # fmt: skip
"""Checked by etcd before a request is proposed to its members, or while it is carried out. All
others of code 14, time-outs above all, may be answered although the transaction is carried out."""
_WHY_NO_LEADER = "fewer than a majority of etcd's members run and reach each other: start them"
NO_LEADER = f"no leader: {_WHY_NO_LEADER}"
_HINTS = (
    ("invalid user ID or password", "correct haEtcdUser and haEtcdPassword"),
    ("user name is empty", "set haEtcdUser and haEtcdPassword: a client certificate does not log "
     "in over the JSON gateway"),
    ("invalid auth token", "the login is not valid any more"),
    ("permission denied", "give the role of haEtcdUser access: etcdctl role grant-permission ROLE "
     "readwrite --prefix=true and the prefix of the keys"),
    ("no leader", _WHY_NO_LEADER),
    ("not a primary lessor", "etcd is electing a leader"),
    ("request timed out", "etcd's members do not reach each other, or their disks are slow"),
    ("database space exceeded", "switch on etcd's auto-compaction, defragment it, and disarm its "
     "NOSPACE alarm"),
    ("HTTP request to an HTTPS server", "write https:// in haEtcdEndpoints"),
)  # fmt: skip
_NO_GATEWAY = (
    "its JSON gateway is switched off (start etcd with --enable-grpc-gateway=true), it is older "
    "than 3.4, or the port is not etcd's client port"
)


def refusal(status: int, body: bytes) -> Refusal:
    """What an error says."""
    code, message = _code_and_message(body)
    if message is None:
        return _without_message(status, body)
    hint = next((hint for part, hint in _HINTS if part in message), "")
    wants_login = code == GrpcCode.PERMISSION_DENIED or _has(message, _LOGIN_TEXTS)
    had_no_effect = code in _NO_EFFECT_CODES or _has(message, _NO_EFFECT_TEXTS)
    return Refusal(
        f"{_shown(message)}: {hint}" if hint else f"{_shown(message)} (gRPC code {code})",
        code,
        had_no_effect=had_no_effect,
        is_lasting=code in _NO_EFFECT_CODES,
        wants_login=wants_login,
    )


def watch_refusal(reason: str) -> Refusal:
    """Why a watch was cancelled; the reason is text in all versions."""
    hint = next((hint for part, hint in _HINTS if part in reason), "")
    text = f"{_shown(reason) or 'cancelled without a reason'}"
    wants_login = _has(reason, (*_LOGIN_TEXTS, "permission denied"))
    return Refusal(f"{text}: {hint}" if hint else text, wants_login=wants_login)


def _without_message(status: int, body: bytes) -> Refusal:
    hint = next((hint for part, hint in _HINTS if part.encode() in body), "")
    if status == 404:
        hint = _NO_GATEWAY
    return Refusal(
        f"HTTP status {status}, {_quoted(body)}: {hint or 'this is not an answer of etcd'}",
        had_no_effect=status in _NO_EFFECT_STATUS,
        is_lasting=status in _NO_EFFECT_STATUS,
        wants_login=status == 401,
    )


class _Error(msgspec.Struct):
    code: int | None = None
    grpc_code: int | None = None
    message: str | None = None
    error: str | dict[str, object] | None = None


def _code_and_message(body: bytes) -> tuple[int, str | None]:
    """None: it has no message of etcd."""
    try:
        error = msgspec.json.decode(body, type=_Error)
        if isinstance(error.error, dict):
            error = msgspec.convert(error.error, type=_Error)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0, None
    code = error.grpc_code if error.code is None else error.code
    message = error.error if error.message is None else error.message
    if code is None or not isinstance(message, str):
        return 0, None
    return code, message


def _has(message: str, texts: tuple[str, ...]) -> bool:
    return any(text in message for text in texts)


def _shown(message: str) -> str:
    """Without what would break a log line."""
    text = message.removeprefix("etcdserver: ")[:_QUOTED_CHARACTERS]
    return text if text.isprintable() else repr(text)


def _quoted(body: bytes) -> str:
    return repr(body[:_QUOTED_CHARACTERS].decode("utf-8", "replace")) if body else "an empty body"
