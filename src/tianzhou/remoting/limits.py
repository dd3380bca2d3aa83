"""What one server or client may use up: bytes, connections, requests and time.

Every buffer, queue and wait of `remoting` has its bound here. "All connections" means those of one
server or one client; each has its own limits.
"""

from dataclasses import dataclass

from tianzhou.errors import ConfigError
from tianzhou.limits import FRAME_BYTES_MAX

_KIB = 1024
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a server or a client; the defaults follow RocketMQ where it has one."""

    # -- bytes -------------------------------------------------------------------------------------
    frame_bytes: int = FRAME_BYTES_MAX  # longest frame read or written
    receive_bytes: int = 256 * _KIB  # receive buffer, shared by all connections
    kept_bytes: int = 256 * _MIB  # incomplete and waiting frames of all connections together
    unsent_high_bytes: int = 256 * _KIB  # above it a connection is not read from any more
    unsent_low_bytes: int = 64 * _KIB  # below it reading goes on
    unsent_cut_bytes: int = 64 * _MIB  # above it the connection is cut, whatever it is waiting for
    unsent_bytes: int = 1024 * _MIB  # the same over all connections; those with most are cut
    handled_bytes: int = 512 * _MIB  # bodies of requests under way; above it SYSTEM_BUSY

    # -- counts ------------------------------------------------------------------------------------
    connections: int = 65_536  # open connections of a server, new ones above it are refused
    connections_per_address: int = 65_536  # of them, those of one peer address
    over_limit: int = 64  # connections above it that get a SYSTEM_BUSY at a time; more are closed
    unclassified: int = 1_024  # of them, those that may be TLS or not and have sent no byte yet
    backlog: int = 1_024  # connections that the kernel may hold ready to be accepted
    requests_in_flight_per_connection: int = 1_024  # running handlers; above it reading pauses
    requests_in_flight: int = 65_536  # the same over all connections; above it SYSTEM_BUSY
    requests_pending: int = 65_535  # our own unanswered requests on one connection, then RemoteBusy

    # -- time --------------------------------------------------------------------------------------
    idle_ms: int = 120_000  # a connection without a byte in either direction is closed
    write_stall_ms: int = 30_000  # a peer above unsent_high_bytes that takes no byte is cut
    vanished_ms: int = 60_000  # TCP's own patience with a peer that acknowledges nothing
    connect_ms: int = 3_000  # longest attempt to connect, TLS handshake included
    handshake_ms: int = (
        10_000  # for the first byte of a new connection, and again for its handshake
    )
    over_limit_ms: int = 3_000  # what telling one of them may take, handshake apart
    goodbye_ms: int = 5_000  # a closed connection's time to take what it was sent, then it is cut

    def __post_init__(self) -> None:
        """Refuse numbers that cannot work, naming them."""
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ConfigError(f"limit {name} is {getattr(self, name)}, at least 1 is needed")
        if self.unsent_low_bytes > self.unsent_high_bytes:
            raise ConfigError(
                f"limit unsent_low_bytes ({self.unsent_low_bytes}) is above "
                f"unsent_high_bytes ({self.unsent_high_bytes})"
            )
