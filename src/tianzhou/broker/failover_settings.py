"""Settings of automatic failover. `haEtcdEndpoints` switches it on; without it roles are fixed."""
# ruff: noqa: RUF009 - setting() makes a field, it does not compute a shared default

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from tianzhou.config.settings import INT32_MAX, Change, setting
from tianzhou.errors import ConfigError
from tianzhou.ha.authority.etcd_endpoints import EtcdAccess, parse_endpoints
from tianzhou.remoting.tls.contexts import Tls

MIN_IN_SYNC = 2
"""minInSyncReplicas with etcd, whatever the number of replicas."""
_COMMAND_MAX = 4096
_SEPARATORS = frozenset("/#\0\n")
"""Names of clusters and brokers are parts of keys in etcd, and of lines in files."""


class UncleanRecovery(StrEnum):
    """What happens when every replica that was in sync may have lost the end of its log."""

    WAIT = "wait"
    AUTO = "auto"


class Refusal(NamedTuple):
    """A setting that cannot be used, and why."""

    field: str
    text: str


# Without slots: the broker inherits from several classes of settings, only one may have them.
@dataclass(frozen=True, kw_only=True)
class FailoverSettings:
    """Where the state of the group is kept, and how this broker takes part."""

    ha_etcd_endpoints: str = setting(
        "",
        "etcd of the broker group, http://HOST:PORT separated by ';'; switches automatic failover "
        "on (Tianzhou's)",
        change=Change.ADMIN,
        maximum=4096,
    )
    ha_etcd_user: str | None = setting(
        None, "user of etcd (Tianzhou's)", change=Change.ADMIN, maximum=255
    )
    ha_etcd_password: str | None = setting(
        None, "password of that user (Tianzhou's)", change=Change.ADMIN, secret=True, maximum=1024
    )
    ha_etcd_ca_file: Path | None = setting(
        None, "certificates that etcd's certificate must lead to, in PEM; the system's if not set "
        "(Tianzhou's)", change=Change.ADMIN,
    )  # fmt: skip
    ha_etcd_cert_file: Path | None = setting(
        None, "certificate chain that is shown to etcd, in PEM (Tianzhou's)", change=Change.ADMIN
    )
    ha_etcd_key_file: Path | None = setting(
        None, "private key of that certificate, in PEM (Tianzhou's)", change=Change.ADMIN
    )
    ha_etcd_prefix: str = setting(
        "/tianzhou", "where the keys of all groups begin in etcd (Tianzhou's)", maximum=255
    )
    ha_lease_seconds: int = setting(
        3, "lease of a running broker in etcd; another broker can become master when it has "
        "expired (Tianzhou's)", minimum=2, maximum=60,
    )  # fmt: skip
    min_in_sync_replicas: int | None = setting(
        None, "in-sync replicas, the master included, below which sends are refused; 2 with "
        "haEtcdEndpoints, 1 without", minimum=0, maximum=100,
    )  # fmt: skip
    broker_election_priority: int = setting(
        INT32_MAX, "between equal candidates the lower number becomes master; 0 never does",
        maximum=INT32_MAX,
    )  # fmt: skip
    ha_unclean_recovery: UncleanRecovery = setting(
        UncleanRecovery.WAIT,
        "when all in-sync replicas may have lost the end of their logs: wait for the operator, or "
        "auto: elect the one with the most (Tianzhou's)",
    )
    ha_role_command: str = setting(
        "", "command that is run after a change of the role, with the role in its environment "
        "(Tianzhou's)", maximum=_COMMAND_MAX,
    )  # fmt: skip
    ha_fence_command: str = setting(
        "", "command that is run before this broker opens as the new master, to stop the old one "
        "(Tianzhou's)", maximum=_COMMAND_MAX,
    )  # fmt: skip

    @property
    def has_failover(self) -> bool:
        """Whether roles are decided by election."""
        return bool(self.ha_etcd_endpoints.strip())

    @property
    def min_in_sync(self) -> int:
        """minInSyncReplicas in force."""
        if self.min_in_sync_replicas:
            return self.min_in_sync_replicas
        return MIN_IN_SYNC if self.has_failover else 1

    @property
    def etcd_access(self) -> EtcdAccess:
        """How etcd is reached. Raises ConfigError."""
        return EtcdAccess(
            endpoints=parse_endpoints(self.ha_etcd_endpoints),
            user=self.ha_etcd_user or "",
            password=self.ha_etcd_password or "",
            tls=Tls(
                certificate=self.ha_etcd_cert_file,
                key=self.ha_etcd_key_file,
                trusted=self.ha_etcd_ca_file,
            ),
        )


def check_change(before: FailoverSettings, after: FailoverSettings) -> None:
    """Refuse what a running broker cannot change. Raises ConfigError."""
    if before.has_failover != after.has_failover:
        raise ConfigError(
            "haEtcdEndpoints: a request neither switches automatic failover on nor off; stop the "
            "broker, and change the key in its configuration file"
        )
    if after.has_failover and after.etcd_access != before.etcd_access:
        access = after.etcd_access
        if any(endpoint.is_tls for endpoint in access.endpoints):
            access.tls.client_context()


def refusals(config: FailoverSettings, given: frozenset[str]) -> Iterator[Refusal]:
    """Settings of failover that contradict each other; `given` are the fields with a value."""
    if config.has_failover:
        yield from _of_etcd(config)
        return
    for field, key in _NEEDS_ENDPOINTS.items():
        if field in given:
            text = f"{key} is set without haEtcdEndpoints: it has no effect with fixed roles"
            yield Refusal(field, f"{text}; set haEtcdEndpoints, or remove the key")
    if config.min_in_sync > 1:
        text = (
            f"minInSyncReplicas={config.min_in_sync} needs haEtcdEndpoints: with fixed roles there "
            "is no set of replicas in sync; use brokerRole=SYNC_MASTER with inSyncReplicas"
        )
        yield Refusal("min_in_sync_replicas", text)


_NEEDS_ENDPOINTS = {
    "ha_etcd_user": "haEtcdUser",
    "ha_etcd_password": "haEtcdPassword",
    "ha_etcd_ca_file": "haEtcdCaFile",
    "ha_etcd_cert_file": "haEtcdCertFile",
    "ha_etcd_key_file": "haEtcdKeyFile",
    "ha_etcd_prefix": "haEtcdPrefix",
    "ha_lease_seconds": "haLeaseSeconds",
    "ha_unclean_recovery": "haUncleanRecovery",
    "ha_role_command": "haRoleCommand",
    "ha_fence_command": "haFenceCommand",
}


def _of_etcd(config: FailoverSettings) -> Iterator[Refusal]:
    try:
        is_tls = parse_endpoints(config.ha_etcd_endpoints)[0].is_tls
    except ConfigError as e:
        yield Refusal("ha_etcd_endpoints", str(e))
        return
    if (config.ha_etcd_user is None) != (config.ha_etcd_password is None):
        text = "haEtcdUser and haEtcdPassword belong together: set both or none"
        yield Refusal("ha_etcd_user", text)
    if (config.ha_etcd_cert_file is None) != (config.ha_etcd_key_file is None):
        text = "haEtcdCertFile and haEtcdKeyFile belong together: set both or none"
        yield Refusal("ha_etcd_cert_file", text)
    has_tls_files = config.ha_etcd_ca_file is not None or config.ha_etcd_cert_file is not None
    if has_tls_files and not is_tls:
        text = "certificates for etcd are set, and the addresses in haEtcdEndpoints begin with "
        yield Refusal("ha_etcd_endpoints", f"{text}http://; write https://")
    prefix = config.ha_etcd_prefix
    if not prefix.startswith("/") or prefix.endswith("/") or _SEPARATORS - {"/"} & set(prefix):
        text = f"haEtcdPrefix={prefix!r} must begin with '/' and not end with it"
        yield Refusal("ha_etcd_prefix", text)
    commands = {"ha_role_command": "haRoleCommand", "ha_fence_command": "haFenceCommand"}
    for field, key in commands.items():
        problem = _command_problem(getattr(config, field))
        if problem is not None:
            yield Refusal(field, f"{key} is no program with arguments: {problem}")


def _command_problem(command: str) -> str | None:
    try:
        shlex.split(command)
    except ValueError as error:
        return str(error)
    return None


def name_problem(key: str, name: str) -> str | None:
    """Why a name cannot be part of a key in etcd."""
    if _SEPARATORS & set(name):
        return f"{key}={name!r} contains '/', '#' or a line break, which failover cannot use"
    return None
