"""May this request be made? The check that every request passes before its handler sees it.

    from a white-listed address                          yes
    signed by an account whose own white list has it     yes
    signed, and the account has what the request needs   yes
    else no, and the log says who, what and why

Only the address of the socket counts, never one that a header names. A stranger learns nothing: an
unknown account and a wrong signature are refused in the same words and after the same work. Nor
does an account learn the topic of a message that it may not see: only the log names it.
"""

import hmac
import logging
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from tianzhou.broker.acl.accounts import Account, Permission, Rules
from tianzhou.broker.acl.needs import Need, TopicAt, needs_of
from tianzhou.broker.line_limit import LineLimit
from tianzhou.errors import ProtocolError, RequestError
from tianzhou.names import TRACE_TOPIC
from tianzhou.protocol import acl
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.quota.addresses import parse_host

log = logging.getLogger(__name__)

UNSIGNED_FIELD = "_UNIQUE_KEY_QUERY"
"""Some clients add it after they have signed."""
_NOBODY_SECRET = "no account has this secret"  # noqa: S105 - compared with nothing
_NAME_SHOWN = 80


class Lack(StrEnum):
    """What a refused request had not."""

    SIGNATURE = "signature"
    RIGHT_SIGNATURE = "right_signature"
    READABLE_BODY = "readable_body"
    ADMINISTRATOR = "administrator"
    PERMISSION = "permission"


class _Refusal(NamedTuple):
    lack: Lack
    why: str
    """For the log."""
    remark: str
    """For the client."""


class Guard:
    """Checks requests against the rules that are in force at that moment."""

    def __init__(self, rules: Callable[[], Rules], topic_at: TopicAt) -> None:
        self._rules = rules
        self._topic_at = topic_at
        self._lines = LineLimit()
        self.refused: Counter[Lack] = Counter()

    def check(self, peer: str, request: Command) -> None:
        """Raises RequestError NO_PERMISSION."""
        refusal = self._refusal(peer, request)
        if refusal is None:
            return
        self.refused[refusal.lack] += 1
        if (ending := self._lines.ending()) is not None:
            log.warning(
                "access control: %s of %s by account %r refused: %s%s",
                _code_name(request.code), peer, _shown(request.fields.get(acl.ACCESS_KEY)),
                refusal.why, ending,
            )  # fmt: skip
        raise RequestError(ResponseCode.NO_PERMISSION, refusal.remark)

    def _refusal(self, peer: str, request: Command) -> _Refusal | None:
        """Why not; None if it may."""
        rules = self._rules()
        address = parse_host(peer.rpartition(":")[0])
        if address is not None and rules.is_white(address):
            return None
        key = request.fields.get(acl.ACCESS_KEY)
        if key is None:
            remark = "access control is on and the request is not signed"
            return _Refusal(Lack.SIGNATURE, "it is not signed", remark)
        account = rules.accounts.get(key)
        if account is not None and address is not None and account.white(address):
            return None
        if not _is_signed(request, account):
            why = "no such account" if account is None else "the signature is wrong"
            remark = f"access denied: account {_shown(key)} or its signature is not right"
            return _Refusal(Lack.RIGHT_SIGNATURE, why, remark)
        assert account is not None
        return self._lacking(request, account)

    def _lacking(self, request: Command, account: Account) -> _Refusal | None:
        try:
            needs = needs_of(request, self._topic_at)
        except ProtocolError as e:
            remark = "the body of the request cannot be read"
            return _Refusal(Lack.READABLE_BODY, f"its body cannot be read: {e}", remark)
        if needs is None:
            return None if account.is_admin else _not_for(account, request.code)
        lacking = next((need for need in needs if not _has(account, need)), None)
        return None if lacking is None else _no_permission(lacking)


def _not_for(account: Account, code: int) -> _Refusal:
    why = f"{_code_name(code)} needs an administrator"
    remark = f"access denied: {why}, and account {_shown(account.access_key)} is none"
    return _Refusal(Lack.ADMINISTRATOR, why, remark)


def _no_permission(need: Need) -> _Refusal:
    permission = f"no permission {_wanted(need)} for"
    why = f"{permission} {'group' if need.is_group else 'topic'} {_shown(need.name)}"
    told = f"{permission} the topic of this message" if need.is_looked_up else why
    return _Refusal(Lack.PERMISSION, why, f"access denied: {told}")


def _is_signed(request: Command, account: Account | None) -> bool:
    secret = account.secret_key if account is not None else _NOBODY_SECRET
    given = request.fields.get(acl.SIGNATURE) or ""
    fields = dict(request.fields)
    body = bytes(request.body)
    matches = _equal(given, acl.signature(fields, body, secret))
    if not matches and UNSIGNED_FIELD in fields:
        del fields[UNSIGNED_FIELD]
        matches = _equal(given, acl.signature(fields, body, secret))
    return matches and account is not None


def _equal(given: str, right: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), right.encode())


def _has(account: Account, need: Need) -> bool:
    if need[:3] == (False, TRACE_TOPIC, Permission.PUB):
        return True  # every client may leave traces, whatever else it may do
    owned = account.of_group(need.name) if need.is_group else account.of_topic(need.name)
    return bool(owned & need.permission)


def _wanted(need: Need) -> str:
    return " or ".join(flag.name or "" for flag in need.permission)


def _code_name(code: int) -> str:
    try:
        return RequestCode(code).name
    except ValueError:
        return f"request {code}"


def _shown(name: str | None) -> str:
    return "none" if name is None else name[:_NAME_SHOWN]
