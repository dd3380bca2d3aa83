"""What the files say: accounts, their permissions, and white lists. Plain data, made once per load.

    permission   DENY, PUB, SUB, PUB|SUB
    topicPerms   topic=permission       for topics that are not named defaultTopicPerm counts
    groupPerms   group=permission       and defaultGroupPerm for groups

What is not given is denied. An account with `admin` and without permissions of its own may do
everything; only such an account may administrate.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntFlag

import msgspec

from tianzhou.errors import ConfigError
from tianzhou.protocol.bodies.auth import PlainAccessConfig
from tianzhou.protocol.bodies.topics import DataVersion
from tianzhou.remoting.quota.addresses import Address, Matches, parse_pattern

_KEY_MIN_CHARACTERS = 7


class Permission(IntFlag):
    """What may be done with a topic or a group; DENY is none of it."""

    DENY = 0
    PUB = 1
    SUB = 2


_PERMISSIONS = {
    "DENY": Permission.DENY,
    "PUB": Permission.PUB,
    "SUB": Permission.SUB,
    "PUB|SUB": Permission.PUB | Permission.SUB,
    "SUB|PUB": Permission.PUB | Permission.SUB,
}


@dataclass(frozen=True, slots=True)
class Account:
    """One account; the secret does not show in logs."""

    access_key: str
    secret_key: str = field(repr=False)
    white: Matches = field(repr=False)
    is_admin: bool
    default_topic: Permission
    default_group: Permission
    topics: Mapping[str, Permission]
    groups: Mapping[str, Permission]

    def of_topic(self, topic: str) -> Permission:
        return self._everything or self.topics.get(topic, self.default_topic)

    def of_named_topic(self, topic: str) -> Permission:
        """The permission for a topic to which `defaultTopicPerm` does not apply."""
        return self._everything or self.topics.get(topic, Permission.DENY)

    def of_group(self, group: str) -> Permission:
        return self._everything or self.groups.get(group, self.default_group)

    @property
    def _everything(self) -> Permission:
        """All permissions for an administrator without permissions of its own; else none."""
        if self.is_admin and not self.topics and not self.groups:
            return Permission.PUB | Permission.SUB
        return Permission.DENY


class FileContent(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """One file as it is written; unknown keys are errors, so that typos show."""

    global_white_remote_addresses: list[str] | None = None
    accounts: list[PlainAccessConfig] | None = None
    data_version: list[DataVersion] | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """All files together."""

    accounts: Mapping[str, Account] = field(default_factory=dict[str, Account])
    """By access key."""
    white: tuple[Matches, ...] = ()

    def is_white(self, address: Address) -> bool:
        """Whether requests from this address need no signature."""
        return any(matches(address) for matches in self.white)


def make_rules(contents: Iterable[tuple[str, FileContent]]) -> Rules:
    """The rules of files, each with its name. Raises ConfigError that names file and account."""
    accounts: dict[str, Account] = {}
    white: list[Matches] = []
    for name, content in contents:
        try:
            white += map(parse_pattern, content.global_white_remote_addresses or ())
            of_file = list(map(make_account, content.accounts or ()))
        except ConfigError as e:
            raise ConfigError(f"{name}: {e}") from e
        for account in of_file:
            if account.access_key in accounts:
                raise ConfigError(f"{name}: account {account.access_key} is defined twice")
            accounts[account.access_key] = account
    return Rules(accounts, tuple(white))


def make_account(given: PlainAccessConfig) -> Account:
    """Raises ConfigError; the text never holds a secret."""
    key, secret = given.access_key or "", given.secret_key or ""
    for what, value in (("accessKey", key), ("secretKey", secret)):
        if len(value) < _KEY_MIN_CHARACTERS:
            raise ConfigError(
                f"account {key!r}: the {what} has {len(value)} characters, "
                f"at least {_KEY_MIN_CHARACTERS} are needed"
            )
    try:
        return Account(
            access_key=key,
            secret_key=secret,
            white=parse_pattern(given.white_remote_address),
            is_admin=given.admin,
            default_topic=parse_permission(given.default_topic_perm),
            default_group=parse_permission(given.default_group_perm),
            topics=dict(map(_named_permission, given.topic_perms or ())),
            groups=dict(map(_named_permission, given.group_perms or ())),
        )
    except ConfigError as e:
        raise ConfigError(f"account {key}: {e}") from e


def parse_permission(text: str | None) -> Permission:
    """Nothing means DENY. Raises ConfigError."""
    if text is None or not text.strip():
        return Permission.DENY
    try:
        return _PERMISSIONS[text.strip().replace(" ", "")]
    except KeyError:
        raise ConfigError(f"{text!r} is no permission: write DENY, PUB, SUB or PUB|SUB") from None


def _named_permission(text: str) -> tuple[str, Permission]:
    name, equals, permission = text.partition("=")
    if not equals or not name.strip() or not permission.strip():
        raise ConfigError(f"{text!r}: write name=permission, as in orders=PUB|SUB")
    return name.strip(), parse_permission(permission)
