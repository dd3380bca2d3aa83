"""The TLS settings of a server, with RocketMQ's names.

There is one set for its ports, and one for the connections that it opens: a broker's to nameservers
and other brokers, a nameserver's to brokers. Each has its own certificate, or none.
"""
# ruff: noqa: RUF009 - setting() makes a field, it does not compute a shared default

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from tianzhou.config.settings import setting
from tianzhou.config.watched_files import WatchedFiles
from tianzhou.errors import ConfigError
from tianzhou.remoting.tls.contexts import ClientCertificates, Tls, TlsMode


# Without slots: the broker inherits from two classes of settings, and only one may have them.
@dataclass(frozen=True, kw_only=True)
class TlsSettings:
    """Settings of the ports (tlsServer...) and of outgoing connections (tlsClient...)."""

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
    use_tls: bool | None = setting(
        None, "speak TLS with the servers that it calls; if not given, where tlsMode is enforcing",
        key="useTLS", aliases=("tls.enable",),
    )  # fmt: skip
    tls_client_cert_path: Path | None = setting(
        None, "certificate chain that is shown to them, in PEM", aliases=("tls.client.certPath",)
    )
    tls_client_key_path: Path | None = setting(
        None, "private key of that certificate in PEM", aliases=("tls.client.keyPath",)
    )
    tls_client_key_password: str | None = setting(
        None, "password of that private key", aliases=("tls.client.keyPassword",), secret=True
    )
    tls_client_auth_server: bool = setting(
        False, "their certificates must lead to tlsClientTrustCertPath, or the system's own",
        aliases=("tls.client.authServer",),
    )  # fmt: skip
    tls_client_trust_cert_path: Path | None = setting(
        None, "certificates that theirs must lead to, in PEM", aliases=("tls.client.trustCertPath",)
    )
    tls_client_check_name: bool = setting(
        False, "with tlsClientAuthServer: theirs must name the host that is called (Tianzhou's)",
        aliases=("tls.client.checkName",),
    )  # fmt: skip


def tls_of(settings: TlsSettings) -> Tls | None:
    """The TLS of the ports, None for plain. Raises ConfigError for incomplete settings."""
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


def client_tls_of(settings: TlsSettings) -> Tls | None:
    """The TLS of outgoing connections, None for plain. Raises ConfigError."""
    is_enforcing = settings.tls_mode is TlsMode.ENFORCING
    if not (is_enforcing if settings.use_tls is None else settings.use_tls):
        return None
    if settings.tls_client_key_path is not None and settings.tls_client_cert_path is None:
        raise ConfigError("tlsClientKeyPath is set, and tlsClientCertPath is not")
    return Tls(
        certificate=settings.tls_client_cert_path,
        key=settings.tls_client_key_path,
        key_password=settings.tls_client_key_password,
        trusted=settings.tls_client_trust_cert_path if settings.tls_client_auth_server else None,
        verify=settings.tls_client_auth_server,
        check_name=settings.tls_client_check_name,
    )


def watched_certificates(paths: Collection[Path], *reloads: Callable[[], None]) -> WatchedFiles:
    """Reloads certificates that change; each of `reloads` raises ConfigError if it fails."""

    def reload() -> str:
        for each in reloads:
            each()
        return "TLS: new certificates are used for connections to come"

    return WatchedFiles(
        lambda: paths, reload, "TLS: new certificates are not used", logging.WARNING
    )


def tls_files_of(settings: TlsSettings) -> tuple[Path, ...]:
    """The files in the settings, to be watched for changes."""
    paths = (
        settings.tls_server_cert_path, settings.tls_server_key_path,
        settings.tls_server_trust_cert_path, settings.tls_client_cert_path,
        settings.tls_client_key_path, settings.tls_client_trust_cert_path,
    )  # fmt: skip
    return tuple(path for path in paths if path is not None)
