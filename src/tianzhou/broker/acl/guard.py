"""Access control of requests: checked before the handler is called.

    from a white-listed address                          yes
    in the name of an account whose white list has it    yes, except for administration
    signed, and the account has what the request needs   yes
    otherwise no: NO_PERMISSION, and a log line with account, request and reason

Only the address of the socket counts, never one that a header names. An unknown account and a wrong
signature are refused with the same remark and after the same work. Nor does a refusal reveal the
topic of a message that an account may not see, or whether there is a message: only the log does.
"""

import logging
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from tianzhou.broker.acl.accounts import Account, Rules
from tianzhou.broker.acl.needs import (
    PUB,
    SUB,
    Kind,
    Need,
    TopicAt,
    group_need,
    needs_of,
    topic_need,
)
from tianzhou.broker.acl.rights import Rights
from tianzhou.errors import HeaderError, ProtocolError, RequestError
from tianzhou.protocol import acl
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.log_rate_limit import LogRateLimit
from tianzhou.remoting.quota.addresses import Address, parse_host
from tianzhou.remoting.scheduler import Steps

log = logging.getLogger(__name__)

_NAME_SHOWN = 80
_NEEDS_PER_STEP = 32
_SUBJECTS = {
    Kind.GROUP: "group",
    Kind.RETRIES: "group",
    Kind.POP_RETRIES: "the retries of",
}


class DenialReason(StrEnum):
    """What a refused request lacked."""

    SIGNATURE = "signature"
    RIGHT_SIGNATURE = "right_signature"
    READABLE_HEADER = "readable_header"
    READABLE_BODY = "readable_body"
    ADMINISTRATOR = "administrator"
    PERMISSION = "permission"


class _Refusal(NamedTuple):
    lack: DenialReason
    why: str
    """For the log."""
    remark: str
    """For the client."""


class Guard:
    """Checks requests against the rules that are in force at that moment."""

    def __init__(
        self, rules: Callable[[], Rules], topic_at: TopicAt, rights: Rights | None = None
    ) -> None:
        self._rules = rules
        self._topic_at = topic_at
        self._has = (rights or Rights()).has
        self._lines = LogRateLimit()
        self.refused: Counter[DenialReason] = Counter()

    def check(self, peer: str, request: Command) -> Steps[str | None]:
        """The access key of the account that makes the request; None from a white-listed address.

        A request with many topics or groups is checked in slices. Raises RequestError
        NO_PERMISSION.
        """
        rules = self._rules()
        address = parse_host(peer.rpartition(":")[0])
        if address is not None and rules.is_white(address):
            return None
        refusal = yield from self._refusal(rules, address, request)
        key = request.fields.get(acl.ACCESS_KEY)
        if refusal is None:
            return key
        self.refused[refusal.lack] += 1
        if (ending := self._lines.ending()) is not None:
            log.warning(
                "access control: %s of %s by account %r refused: %s%s",
                _code_name(request.code), peer, _shown(key), refusal.why, ending,
            )  # fmt: skip
        raise RequestError(ResponseCode.NO_PERMISSION, refusal.remark)

    def may_publish(self, peer: str, access_key: str | None, topic: str) -> bool:
        """Whether a connection whose requests passed as this account may write a topic now."""
        return self._may(peer, access_key, [topic_need(topic, PUB)])

    def may_consume(self, peer: str, access_key: str | None, topic: str, group: str) -> bool:
        """The same for reading a topic as a group."""
        return self._may(peer, access_key, [topic_need(topic, SUB), group_need(group)])

    def _may(self, peer: str, access_key: str | None, needs: list[Need]) -> bool:
        rules = self._rules()
        address = parse_host(peer.rpartition(":")[0])
        if address is not None and rules.is_white(address):
            return True
        account = None if access_key is None else rules.accounts.get(access_key)
        if account is None:
            return False
        if address is not None and account.white(address):
            return True
        return all(self._has(account, need) for need in needs)

    def _refusal(
        self, rules: Rules, address: Address | None, request: Command
    ) -> Steps[_Refusal | None]:
        """Why the request is refused; None if it is allowed."""
        key = request.fields.get(acl.ACCESS_KEY)
        if key is None:
            remark = "access control is on and the request is not signed"
            return _Refusal(DenialReason.SIGNATURE, "it is not signed", remark)
        account = rules.accounts.get(key)
        is_white = account is not None and address is not None and account.white(address)
        if is_white and not (yield from self._is_administration(request)):
            return None
        if not acl.is_signed_with(request, account.secret_key if account else None):
            why = "no such account" if account is None else "the signature is wrong"
            if is_white:
                why += " (whiteRemoteAddress does not replace the one of an administrator)"
            remark = f"access denied: account {_shown(key)} or its signature is not right"
            return _Refusal(DenialReason.RIGHT_SIGNATURE, why, remark)
        assert account is not None
        if len(request.body) > acl.SIGNED_AT_ONCE_BYTES:
            yield
        return (yield from self._lacking(request, account))

    def _is_administration(self, request: Command) -> Steps[bool]:
        """Whether only an administrator may make the request; yes if it cannot be read."""
        try:
            needs = yield from needs_of(request, self._topic_at)
            if needs is None:
                return True
            for number, need in enumerate(needs, 1):
                if need.kind is Kind.ADMINISTRATOR:
                    return True
                if not number % _NEEDS_PER_STEP:
                    yield
        except ProtocolError:
            return True
        return False

    def _lacking(self, request: Command, account: Account) -> Steps[_Refusal | None]:
        try:
            needs = yield from needs_of(request, self._topic_at)
            if needs is None:
                return None if account.is_admin else _not_for(account, request.code)
            for number, need in enumerate(needs, 1):
                if not self._has(account, need):
                    return _no_permission(need)
                if not number % _NEEDS_PER_STEP:
                    yield
        except HeaderError as e:
            why = f"its header cannot be read: {e}"
            remark = f"the header of the request cannot be read: {e}"
            return _Refusal(DenialReason.READABLE_HEADER, why, remark)
        except ProtocolError as e:
            remark = "the body of the request cannot be read"
            return _Refusal(DenialReason.READABLE_BODY, f"its body cannot be read: {e}", remark)
        return None


def _not_for(account: Account, code: int) -> _Refusal:
    why = f"{_code_name(code)} needs an administrator"
    remark = f"access denied: {why}, and account {_shown(account.access_key)} is none"
    return _Refusal(DenialReason.ADMINISTRATOR, why, remark)


def _no_permission(need: Need) -> _Refusal:
    permission = f"no permission {_wanted(need)} for"
    why = f"{permission} {_SUBJECTS.get(need.kind, 'topic')} {_shown(need.name)}"
    if need.kind is Kind.ADMINISTRATOR:
        why += ", which only an administrator has"
    elif need.kind is Kind.TOPIC_BY_NAME:
        why += ", which the account's topicPerms must name"
    if need.is_looked_up:
        # One text for a message of a topic of others, and for none at all.
        hidden = f"no message begins there, or {permission} the topic of this message"
        return _Refusal(DenialReason.PERMISSION, why, f"access denied: {hidden}")
    return _Refusal(DenialReason.PERMISSION, why, f"access denied: {why}")


def _wanted(need: Need) -> str:
    return " or ".join(flag.name or "" for flag in need.permission)


def _code_name(code: int) -> str:
    try:
        return RequestCode(code).name
    except ValueError:
        return f"request {code}"


def _shown(name: str | None) -> str:
    return "none" if name is None else name[:_NAME_SHOWN]
