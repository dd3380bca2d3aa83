"""The TLS settings of a server, under RocketMQ's own names: a part of its configuration."""
# ruff: noqa: RUF009 - setting() makes a field, it does not compute a shared default

from dataclasses import dataclass
from pathlib import Path

from tianzhou.config.settings import setting
from tianzhou.errors import ConfigError
from tianzhou.remoting.tls import ClientCertificates, Tls, TlsMode


# Without slots: the broker inherits from two classes of settings, and only one may have them.
@dataclass(frozen=True, kw_only=True)
class TlsSettings:
    """What a port that may speak TLS has to know."""

    tls_mode: TlsMode = setting(
        TlsMode.PERMISSIVE,
        "disabled, permissive (plain and TLS on one port; no certificate: plain) or enforcing",
        aliases=("tls.server.mode",),
    )
    tls_server_cert_path: Path | None = setting(
        None, "certificate chain in PEM", aliases=("tls.server.certPath",)
    )
    tls_server_key_path: Path | None = setting(
        None, "private key of the certificate in PEM", aliases=("tls.server.keyPath",)
    )
    tls_server_key_password: str | None = setting(
        None, "password of the private key", aliases=("tls.server.keyPassword",), secret=True
    )
    tls_server_trust_cert_path: Path | None = setting(
        None, "certificates that client certificates must lead to, in PEM",
        aliases=("tls.server.trustCertPath",),
    )  # fmt: skip
    tls_server_need_client_auth: ClientCertificates = setting(
        ClientCertificates.NONE, "none, optional or require: certificates of TLS clients",
        aliases=("tls.server.need.client.auth",),
    )  # fmt: skip


def tls_of(settings: TlsSettings) -> Tls | None:
    """The TLS of the ports, None for plain. Raises ConfigError for half of a setting."""
    if settings.tls_mode is TlsMode.OFF:
        return None
    if settings.tls_server_cert_path is None:
        if settings.tls_mode is TlsMode.ENFORCING:
            raise ConfigError("tlsMode enforcing needs tlsServerCertPath and tlsServerKeyPath")
        if settings.tls_server_key_path is not None:
            raise ConfigError("tlsServerKeyPath is set, and tlsServerCertPath is not")
        return None
    return Tls(
        mode=settings.tls_mode,
        certificate=settings.tls_server_cert_path,
        key=settings.tls_server_key_path,
        key_password=settings.tls_server_key_password,
        trusted=settings.tls_server_trust_cert_path,
        client_certificates=settings.tls_server_need_client_auth,
    )
