"""Clusters with TLS and access control: ours, and Apache's of both versions.

Brokers and nameservers accept TLS and plain connections, with a certificate of a certificate
authority created for the test. Accounts are those of RocketMQ's access control 1.0, plain_acl.yml;
5.5 only converts that file to users and policies, so there both kinds are tested.
"""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from tests.support.apache.backends import OURS, Backend
from tests.support.apache.servers import (
    LOOPBACK,
    apache_broker,
    apache_namesrv,
    tianzhou_broker,
    tianzhou_namesrv,
)
from tianzhou.client import ClientSettings, Credentials, Tls

CHIEF = Credentials("chief-account", "chief-secret")
"""May do everything."""
CLERK = Credentials("clerk-account", "clerk-secret")
"""May write and read the topics below, in the groups below."""
GUARDED, ORDERED = "Guarded", "GuardedOrder"
GROUP, ORDERED_GROUP, ASKING_GROUP = "clerks", "orderly-clerks", "asking-clerks"

_ACCOUNTS = f"""
accounts:
  - accessKey: {CHIEF.access_key}
    secretKey: {CHIEF.secret_key}
    admin: true
  - accessKey: {CLERK.access_key}
    secretKey: {CLERK.secret_key}
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms: [{GUARDED}=PUB|SUB, {ORDERED}=PUB|SUB]
    groupPerms: [{GROUP}=SUB, {ORDERED_GROUP}=SUB, {ASKING_GROUP}=SUB]
"""
_LOCKS_LIVE = "rocketmq.broker.rebalance.lockMaxLiveTime"
_LOCK_LIFE_MS = 3_000
"""Locks of a killed consumer must expire; the default of 60 s is too long for a test."""
_SOON: dict[str, Any] = {"messageDelayLevel": " ".join(["1s"] * 18)}


@dataclass(frozen=True, slots=True)
class Secured:
    """A running cluster, and the folder of the certificates."""

    backend: Backend
    folder: Path

    def settings(self, credentials: Credentials | None, *, encrypted: bool) -> ClientSettings:
        tls = Tls(trusted=self.folder / "ca.pem") if encrypted else None
        return ClientSettings(
            namesrv=self.backend.namesrv,
            credentials=credentials,
            tls=tls,
            # The interval at which consumers of this test detect changes of membership.
            heartbeat_ms=1_000,
        )


@contextmanager
def secured_cluster(kind: str, folder: Path) -> Generator[Secured]:
    """A cluster of a kind, certificates and accounts in `folder`."""
    _write_certificates(folder)
    with ExitStack() as stack:
        start = _start_ours if kind == OURS else _start_apache
        namesrv = start(stack, kind, folder)
        yield Secured(Backend(kind, namesrv), folder)


def _write_certificates(folder: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    issued = authority.issue_cert(LOOPBACK)
    (folder / "server.pem").write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    # Netty accepts no other format of a private key.
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "server.key").write_bytes(pem)
    trustme.CA().cert_pem.write_to_path(folder / "stranger.pem")


def _start_ours(stack: ExitStack, _kind: str, folder: Path) -> str:
    (folder / "plain_acl.yml").write_text(_ACCOUNTS)
    secure: dict[str, Any] = {
        "tlsMode": "permissive", "tlsServerCertPath": folder / "server.pem",
        "tlsServerKeyPath": folder / "server.key",
    }  # fmt: skip
    namesrv = stack.enter_context(tianzhou_namesrv(graceful=False, **secure))
    own: dict[str, Any] = {
        "aclEnable": "true", "aclFile": folder / "plain_acl.yml", "aclFolder": folder / "acl",
        _LOCKS_LIVE: _LOCK_LIFE_MS,
    }  # fmt: skip
    stack.enter_context(tianzhou_broker(namesrv, **secure, **own, **_SOON))
    return namesrv.address


def _start_apache(stack: ExitStack, kind: str, folder: Path) -> str:
    secure = [
        "-Dtls.test.mode.enable=false", "-Dtls.server.mode=permissive",
        "-Dtls.server.need.client.auth=none", f"-Dtls.server.certPath={folder / 'server.pem'}",
        f"-Dtls.server.keyPath={folder / 'server.key'}",
    ]  # fmt: skip
    namesrv = stack.enter_context(apache_namesrv(kind, jvm_options=secure))
    provider = "org.apache.rocketmq.auth"
    access: dict[str, Any] = {"aclEnable": "true"}
    if kind != "4.9.7":
        access = {
            "authenticationEnabled": "true",
            "authenticationProvider":
                f"{provider}.authentication.provider.DefaultAuthenticationProvider",
            "authenticationMetadataProvider":
                f"{provider}.authentication.provider.LocalAuthenticationMetadataProvider",
            "authorizationEnabled": "true",
            "authorizationProvider":
                f"{provider}.authorization.provider.DefaultAuthorizationProvider",
            "authorizationMetadataProvider":
                f"{provider}.authorization.provider.LocalAuthorizationMetadataProvider",
            "migrateAuthFromV1Enabled": "true",
        }  # fmt: skip
    broker = apache_broker(
        kind,
        namesrv.address,
        graceful=False,
        jvm_options=[*secure, f"-D{_LOCKS_LIVE}={_LOCK_LIFE_MS}"],
        conf_files={"plain_acl.yml": _ACCOUNTS},
        **access,
        **_SOON,
    )
    stack.enter_context(broker)
    return namesrv.address
