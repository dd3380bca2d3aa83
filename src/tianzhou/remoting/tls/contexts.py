"""TLS: the settings of a server or a client, and the SSL contexts made from them.

A server in permissive mode serves TLS and plain peers on one port: a TLS handshake begins with the
byte 0x16, a frame with the top byte of its length, which is 0 or 1. Certificates are loaded when a
context is made; a reload makes a new context for new connections.
"""

import ssl
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tianzhou.errors import ConfigError

TLS_GOODBYE_S = 2.0
"""How long a closing connection waits for the peer's close_notify."""


class TlsMode(StrEnum):
    """The TLS mode of a server; the values are RocketMQ's (`tls.server.mode`)."""

    OFF = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientCertificates(StrEnum):
    """Whether clients need certificates; RocketMQ's values (`tls.server.need.client.auth`)."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "require"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Settings. A certificate is required for a server, optional for a client."""

    mode: TlsMode = TlsMode.ENFORCING  # servers only
    certificate: Path | None = None  # own chain, PEM
    key: Path | None = None  # its private key, PEM; None if it is in the file of the certificate
    key_password: str | None = None  # for an encrypted key
    trusted: Path | None = None  # certificate authorities of the peers, PEM; None: the system's
    client_certificates: ClientCertificates = ClientCertificates.NONE  # servers only
    verify: bool = True  # clients only; False accepts any server, RocketMQ's default
    check_name: bool = True  # clients only; the certificate must name the host that was dialled
    server_name: str | None = None  # clients only; the expected name instead of the dialled host

    def server_context(self) -> ssl.SSLContext | None:
        """The context of a server, None if TLS is off. Raises ConfigError."""
        if self.mode is TlsMode.OFF:
            return None
        if self.certificate is None:
            raise ConfigError(f"TLS mode {self.mode} needs a server certificate and its key")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load_certificate(context)
        if self.client_certificates is not ClientCertificates.NONE:
            if self.trusted is None:
                raise ConfigError("to check client certificates, name the authorities to trust")
            self._load_trusted(context)
            required = self.client_certificates is ClientCertificates.REQUIRED
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        return context

    def client_context(self) -> ssl.SSLContext:
        """The context of a client. Raises ConfigError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.verify and self.check_name
        context.verify_mode = ssl.CERT_REQUIRED if self.verify else ssl.CERT_NONE
        if self.trusted is not None:
            self._load_trusted(context)
        elif self.verify:
            context.load_default_certs()
        self._load_certificate(context)
        return context

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.certificate is None:
            return
        for path in (self.certificate, self.key):
            _check_ordinary(path)
        try:
            # Without a password function OpenSSL would prompt at the terminal.
            context.load_cert_chain(self.certificate, self.key, lambda: self.key_password or "")
        except OSError as error:
            files = self.certificate if self.key is None else f"{self.certificate}, {self.key}"
            raise ConfigError(
                f"TLS certificate and key ({files}) cannot be loaded: {error}"
            ) from error

    def _load_trusted(self, context: ssl.SSLContext) -> None:
        _check_ordinary(self.trusted)
        try:
            context.load_verify_locations(self.trusted)
        except OSError as error:
            raise ConfigError(
                f"TLS authorities ({self.trusted}) cannot be loaded: {error}"
            ) from error


def _check_ordinary(path: Path | None) -> None:
    """Refuses pipes: OpenSSL would wait for ever for a writer."""
    if path is not None and path.exists() and not path.is_file():
        raise ConfigError(f"{path}: is no ordinary file")
