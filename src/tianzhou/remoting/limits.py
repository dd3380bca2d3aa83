"""Limits of one server or client: bytes, connections, requests and time.

Every buffer, queue and wait of `remoting` has its limit here. "All connections" means those of one
server or one client; each has its own limits.
"""

from dataclasses import dataclass

from tianzhou.errors import ConfigError
from tianzhou.limits import FRAME_BYTES_MAX

_KIB = 1024
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a server or a client; the defaults are RocketMQ's where it has one."""

    # -- bytes -------------------------------------------------------------------------------------
    frame_bytes: int = FRAME_BYTES_MAX  # longest frame read or written
    receive_bytes: int = 256 * _KIB  # receive buffer, shared by all connections
    kept_bytes: int = 256 * _MIB  # unread: incomplete and held frames of all connections
    unsent_high_bytes: int = 256 * _KIB  # above it a server does not read the connection
    unsent_low_bytes: int = 64 * _KIB  # below it reading is resumed
    unsent_cut_bytes: int = 64 * _MIB  # above it the connection is cut at once
    unsent_bytes: int = 1024 * _MIB  # the same over all connections; those with most are cut
    handled_bytes: int = 512 * _MIB  # bodies of requests in flight; above it SYSTEM_BUSY

    # -- counts ------------------------------------------------------------------------------------
    connections: int = 65_536  # open connections of a server, new ones above it are refused
    connections_per_address: int = 65_536  # of them, those of one peer address
    over_limit: int = 64  # further connections that get a SYSTEM_BUSY at a time; others are closed
    unclassified: int = 1_024  # of them, those without a first byte, which may be TLS or plain
    backlog: int = 1_024  # connections that wait in the kernel to be accepted
    requests_in_flight_per_connection: int = 1_024  # running handlers; above it reading pauses
    requests_in_flight: int = 65_536  # the same over all connections; above it SYSTEM_BUSY
    requests_pending: int = 65_535  # sent on one connection; above it RemoteBusy

    # -- time --------------------------------------------------------------------------------------
    idle_ms: int = 120_000  # a connection without a byte in either direction is closed
    write_stall_ms: int = 30_000  # a peer above unsent_high_bytes that reads nothing is cut
    vanished_ms: int = 60_000  # TCP time-out of a peer that acknowledges nothing
    connect_ms: int = 3_000  # longest attempt to connect, TLS handshake included
    handshake_ms: int = 10_000  # for the first byte of a connection, and again for the handshake
    over_limit_ms: int = 3_000  # lifetime of a connection above the limit, without the handshake
    goodbye_ms: int = 5_000  # for a closed connection to send unsent bytes, then it is cut

    def __post_init__(self) -> None:
        """Raises ConfigError for invalid values."""
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ConfigError(f"limit {name} is {getattr(self, name)}, at least 1 is needed")
        if self.unsent_low_bytes > self.unsent_high_bytes:
            raise ConfigError(
                f"limit unsent_low_bytes ({self.unsent_low_bytes}) is above "
                f"unsent_high_bytes ({self.unsent_high_bytes})"
            )
