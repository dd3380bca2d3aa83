"""The keys of a replication group in etcd.

    /tianzhou/CLUSTER/BROKERNAME/state
                                 replicas/ID
                                 alive/ID
                                 wish

Names are percent-encoded, all but letters, digits and "-._~", so that a name with "/" is one part
of the key. The prefix of a group ends with "/": no group's keys are among those of another.
"""

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from tianzhou.errors import ConfigError
from tianzhou.ha.authority.values import REPLICAS_MAX, Key

DEFAULT_PREFIX = "/tianzhou"
_PREFIX_BYTES_MAX = 1024
_ID = re.compile("[1-9][0-9]{0,3}")

Name = Key | tuple[Literal["state"], None]
STATE: Name = ("state", None)


@dataclass(frozen=True, slots=True)
class GroupKeys:
    """Names to keys and back."""

    prefix: bytes

    @property
    def end(self) -> bytes:
        """The first key behind all of the group: '0' follows '/'."""
        return self.prefix[:-1] + b"0"

    def key(self, name: Name) -> bytes:
        """The key of a name."""
        suffix = name[0] if name[1] is None else f"{name[0]}/{name[1]}"
        return self.prefix + suffix.encode()

    def name(self, key: bytes) -> Name | None:
        """What a key of the group is; None for one that is unknown here."""
        kind, _, number = key[len(self.prefix) :].decode("utf-8", "replace").partition("/")
        if kind == "state" and not number:
            return STATE
        if kind == "wish" and not number:
            return ("wish", None)
        if not _ID.fullmatch(number) or int(number) > REPLICAS_MAX:
            return None
        if kind == "replicas":
            return ("replicas", int(number))
        return ("alive", int(number)) if kind == "alive" else None


def group_keys(cluster: str, broker_name: str, prefix: str = DEFAULT_PREFIX) -> GroupKeys:
    """The keys of a group. Raises ConfigError for a prefix that cannot be one."""
    parts = prefix.strip("/")
    if not (cluster and broker_name):
        raise ConfigError("brokerClusterName and brokerName must not be empty with etcd")
    if not parts or not parts.isprintable():
        raise ConfigError(f"haEtcdPrefix {prefix!r} is no prefix of keys; write one as /tianzhou")
    text = f"/{parts}/{_quoted(cluster)}/{_quoted(broker_name)}/"
    encoded = text.encode()
    if len(encoded) > _PREFIX_BYTES_MAX:
        raise ConfigError(
            f"haEtcdPrefix, brokerClusterName and brokerName have {len(encoded)} bytes together, "
            f"at most {_PREFIX_BYTES_MAX}"
        )
    return GroupKeys(encoded)


def _quoted(name: str) -> str:
    return quote(name, safe="", errors="surrogatepass")
