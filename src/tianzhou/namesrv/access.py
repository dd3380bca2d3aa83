"""Which brokers may register, and which accounts administrate: an optional file of a nameserver.

    brokerAddresses: [10.0.0.0/24]           register, unregister and so on from there, unsigned
    brokerAccounts:
      - {accessKey: broker-service, secretKey: ...}         the same, signed, from anywhere
    administrators:
      - {accessKey: operations, secretKey: ...}             everything, signed, from anywhere

What only reads is open, as clients need it; every request that is not named here needs an
administrator. Rules change only as a whole: a file that cannot be used, or is gone, leaves the
rules as they were. RocketMQ has nothing like it: its nameserver trusts its network.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

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
"""What only reads."""
OF_BROKERS = frozenset(
    {
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
    }
)
"""What brokers send; QUERY_DATA_VERSION counts as a sign of life."""

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


class _Known(NamedTuple):
    secret_key: str
    is_admin: bool


@dataclass(frozen=True, slots=True)
class AccessRules:
    """What the file says."""

    addresses: tuple[Matches, ...]
    accounts: dict[str, _Known] = field(repr=False)
    """By access key."""


def read_rules(path: Path) -> AccessRules:
    """Raises ConfigError that names the file; its text never holds a secret."""
    text = read_text(path, _SIZE_MAX)
    try:
        data: object = parse_yaml(text) or dict[str, object]()
        check_names(data, _File, "the file")
        said = {name: value for name, value in cast("dict[str, object]", data).items() if value}
        file = msgspec.convert(said, _File)
        return AccessRules(
            tuple(map(parse_pattern, file.broker_addresses)),
            _accounts_of(file),
        )
    except (msgspec.ValidationError, ConfigError) as e:
        raise ConfigError(f"{path}: {e}") from e


def _accounts_of(file: _File) -> dict[str, _Known]:
    accounts: dict[str, _Known] = {}
    for listed, is_admin in ((file.broker_accounts, False), (file.administrators, True)):
        for account in listed:
            key, secret = account.access_key, account.secret_key
            if min(len(key), len(secret)) < _KEY_MIN_CHARACTERS:
                raise ConfigError(
                    f"account {key!r}: accessKey and secretKey need at least "
                    f"{_KEY_MIN_CHARACTERS} characters"
                )
            if key in accounts:
                raise ConfigError(f"account {key} is there twice")
            accounts[key] = _Known(secret, is_admin)
    return accounts


class Access:
    """Checks requests by a file that may change at any time."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError if the file cannot be used."""
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
        self._rules = read_rules(self._path)
        admin_count = sum(account.is_admin for account in self._rules.accounts.values())
        return (
            f"access: {len(self._rules.addresses)} addresses and "
            f"{len(self._rules.accounts) - admin_count} accounts of brokers, "
            f"{admin_count} administrators"
        )

    def check(self, peer: str, request: Command) -> Steps[None]:
        """The signature of a long request takes a slice. Raises RequestError NO_PERMISSION."""
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
                "access: %s of %s by account %r refused: %s%s",
                _code_name(request.code), peer, None if key is None else key[:_NAME_SHOWN], why,
                ending,
            )  # fmt: skip
        raise RequestError(ResponseCode.NO_PERMISSION, f"access denied: {why}")

    def _refusal(self, peer: str, request: Command) -> str | None:
        """Why not; None if it may."""
        rules = self._rules
        is_of_broker = request.code in OF_BROKERS
        address = parse_host(peer.rpartition(":")[0])
        if is_of_broker and address is not None and any(each(address) for each in rules.addresses):
            return None
        needed = "a broker that is listed" if is_of_broker else "an administrator"
        key = request.fields.get(acl.ACCESS_KEY)
        if key is None:
            return f"{_code_name(request.code)} needs {needed}, and the request is not signed"
        account = rules.accounts.get(key)
        if not acl.is_signed_with(request, account.secret_key if account else None):
            return "the account or its signature is not right"
        assert account is not None
        if is_of_broker or account.is_admin:
            return None
        return f"{_code_name(request.code)} needs {needed}, and the account is none"


def _code_name(code: int) -> str:
    try:
        return RequestCode(code).name
    except ValueError:
        return f"request {code}"
