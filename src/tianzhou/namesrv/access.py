"""Access control of a nameserver: which brokers may register, and which accounts administrate.

    brokerAddresses: [10.0.0.0/24]           requests of brokers, unsigned, from these addresses
    brokerAccounts:
      - {accessKey: broker-service, secretKey: ...}         the same, signed, from any address
    administrators:
      - {accessKey: operations, secretKey: ...}             all requests, signed, from any address

Read-only requests are open: clients need them. A request code that is not listed below needs an
administrator. An invalid or missing file leaves the current rules in force. RocketMQ has no such
file: its nameserver trusts its network.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import msgspec

from tianzhou.config.watched_files import WatchedFiles
from tianzhou.config.yaml_files import check_names, parse_yaml, read_text
from tianzhou.errors import ConfigError, RequestError
from tianzhou.protocol import acl
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.log_rate_limit import LogRateLimit
from tianzhou.remoting.quota.addresses import Matches, parse_host, parse_pattern
from tianzhou.remoting.scheduler import Steps

log = logging.getLogger(__name__)

OPEN = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_BROKER_MEMBER_GROUP,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
    }
)
"""Read-only requests."""
OF_BROKERS = frozenset(
    {
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
    }
)
"""Requests of brokers; QUERY_DATA_VERSION counts as a heartbeat."""

_SIZE_MAX = 4 * 1024 * 1024
_KEY_MIN_CHARACTERS = 7
_NAME_SHOWN = 80


class _Account(msgspec.Struct, frozen=True, rename="camel"):
    access_key: str
    secret_key: str


class _File(msgspec.Struct, frozen=True, rename="camel"):
    broker_addresses: list[str] = []
    broker_accounts: list[_Account] = []
    administrators: list[_Account] = []


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The content of the file."""

    addresses: tuple[Matches, ...]
    secret_keys: dict[str, str] = field(repr=False)
    """Of all accounts, by access key."""
    administrators: frozenset[str]
    """Access keys."""


def read_rules(path: Path) -> AccessRules:
    """Raises ConfigError with the path; its text never contains a secret."""
    text = read_text(path, _SIZE_MAX)
    try:
        data: object = parse_yaml(text) or dict[str, object]()
        check_names(data, _File, "the file")
        given = {name: value for name, value in cast("dict[str, object]", data).items() if value}
        file = msgspec.convert(given, _File)
        return AccessRules(
            tuple(map(parse_pattern, file.broker_addresses)),
            _secret_keys(file.broker_accounts + file.administrators),
            frozenset(account.access_key for account in file.administrators),
        )
    except (msgspec.ValidationError, ConfigError) as e:
        raise ConfigError(f"{path}: {e}") from e


def _secret_keys(accounts: list[_Account]) -> dict[str, str]:
    secret_keys: dict[str, str] = {}
    for account in accounts:
        key, secret = account.access_key, account.secret_key
        if min(len(key), len(secret)) < _KEY_MIN_CHARACTERS:
            raise ConfigError(
                f"account {key!r}: accessKey and secretKey need at least "
                f"{_KEY_MIN_CHARACTERS} characters"
            )
        if key in secret_keys:
            raise ConfigError(f"account {key} is listed twice")
        secret_keys[key] = secret
    return secret_keys


class Access:
    """Checks requests against the access file, and reloads the file when it changes."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError if the file is invalid."""
        self._path = path
        watched = WatchedFiles(
            lambda: [path], self._reload, "access: the last good rules stay in force"
        )
        self.poll = watched.poll
        """Loads a changed file; an invalid one leaves the rules as they are."""
        self._lines = LogRateLimit()
        self.refused_count = 0
        """Requests that were refused."""
        log.info("%s", self._reload())

    def _reload(self) -> str:
        rules = self._rules = read_rules(self._path)
        admin_count = len(rules.administrators)
        return (
            f"access: {len(rules.addresses)} addresses and {len(rules.secret_keys) - admin_count} "
            f"accounts of brokers, {admin_count} administrators"
        )

    def check(self, peer: str, request: Command) -> Steps[None]:
        """Raises RequestError NO_PERMISSION. Pauses after a long body: its hash takes a slice."""
        if request.code in OPEN:
            return
        why = self._refusal(peer, request)
        if why is None:
            if len(request.body) > acl.SIGNED_AT_ONCE_BYTES:
                yield
            return
        self.refused_count += 1
        key = request.fields.get(acl.ACCESS_KEY)
        if (ending := self._lines.ending()) is not None:
            log.warning(
                "access: %s from %s by account %r refused: %s%s",
                _code_name(request.code), peer, None if key is None else key[:_NAME_SHOWN], why,
                ending,
            )  # fmt: skip
        raise RequestError(ResponseCode.NO_PERMISSION, f"access denied: {why}")

    def _refusal(self, peer: str, request: Command) -> str | None:
        """Why the request is refused; None if it is permitted."""
        rules = self._rules
        is_of_broker = request.code in OF_BROKERS
        address = parse_host(peer.rpartition(":")[0])
        if is_of_broker and address is not None and any(each(address) for each in rules.addresses):
            return None
        needed = "a broker that is listed" if is_of_broker else "an administrator"
        key = request.fields.get(acl.ACCESS_KEY)
        if key is None:
            return f"{_code_name(request.code)} needs {needed}, and the request is not signed"
        if not acl.is_signed_with(request, rules.secret_keys.get(key)):
            return "the account or its signature is not right"
        if is_of_broker or key in rules.administrators:
            return None
        return f"{_code_name(request.code)} needs {needed}, and the account is none"


def _code_name(code: int) -> str:
    try:
        return RequestCode(code).name
    except ValueError:
        return f"request {code}"
