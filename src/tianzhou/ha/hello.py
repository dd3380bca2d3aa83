"""The hello between two brokers of Tianzhou, before the slave connects to the HA port.

    slave                                   master (its listen port)
    HA_HELLO: who it is, its log     ->     refusal_of: same group, file size, equal logs
                                     <-     a token for one connection, the master's log
    problem_with: the same for the slave's side, then "TZHA" and the token to the HA port

Apache's brokers respond with REQUEST_CODE_NOT_SUPPORTED; default HA is used with them. The request
is an ordinary one, so that access control and TLS apply to it. Where masters are elected, both
sides apply the rules of `elected_hello` instead of `refusal_of` and `problem_with`. No I/O here.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tianzhou.errors import ReplicationError
from tianzhou.ha import epochs
from tianzhou.ha.epochs import Epochs, consistent_point
from tianzhou.ha.frames import TOKEN_BYTES
from tianzhou.ha.log_tail import EMPTY_TAIL, Tail
from tianzhou.protocol import headers
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.ha import HelloRequest, HelloResponse

_TOKEN = re.compile(f"[0-9a-fA-F]{{{2 * TOKEN_BYTES}}}")
_PORT_MAX = 65_535
_TEXT_CHARS_MAX = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """Which broker speaks; does not change while it runs."""

    cluster: str
    name: str
    id: int
    store_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """What a broker says of its log."""

    first_offset: int
    end_offset: int
    file_bytes: int
    """mappedFileSizeCommitLog."""
    epochs: Epochs = ()
    is_flushed: bool = field(default=False)
    """A slave acknowledges what is on its disk."""
    tail: Tail = EMPTY_TAIL
    """Of a slave."""

    @property
    def is_empty(self) -> bool:
        """Without a single record, so that it may begin at any log file of the master."""
        return self.end_offset == self.first_offset


class PortTls(StrEnum):
    """TLS of the HA port of a master; the values are those of tlsMode."""

    NONE = "disabled"
    OFFERED = "permissive"
    REQUIRED = "enforcing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What the master offers: where to connect, and its log."""

    token: bytes | None
    """None: the slave must cut its log first."""
    ha_port: int
    log: LogState
    epoch: int = 0
    group: str | None = None
    confirm_offset: int = -1
    ha_tls: PortTls = PortTls.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """What a slave says of itself where the master is elected."""

    group: str
    incarnation: int
    followed_epoch: int


# -- the slave's side ------------------------------------------------------------------------------


def make_request(
    own: Broker, log: LogState, version: str, member: Membership | None = None
) -> Command:
    """The hello of a slave. An empty log has neither an end nor epochs."""
    header = HelloRequest(
        cluster=own.cluster,
        broker_name=own.name,
        broker_id=own.id,
        store_id=own.store_id,
        end_offset=0 if log.is_empty else log.end_offset,
        epochs="" if log.is_empty else epochs.text(log.epochs),
        log_file_bytes=log.file_bytes,
        is_flushed=log.is_flushed,
        version=version,
        tail_bytes=log.tail.size_bytes,
        tail_crc=log.tail.crc,
        group=member.group if member else None,
        incarnation=member.incarnation if member else None,
        followed_epoch=member.followed_epoch if member else None,
    )
    return Command(code=RequestCode.HA_HELLO, ext_fields=headers.encode(header))


def read_response(response: Command) -> Offer:
    """The offer of a master that said yes. Raises ProtocolError."""
    header = headers.decode(HelloResponse, response.fields)
    must_cut = header.group is not None and not header.token
    if not must_cut and not _TOKEN.fullmatch(header.token):
        raise ReplicationError("the master's response to the hello has no token")
    if not 1 <= header.ha_port <= _PORT_MAX:
        raise ReplicationError(f"the master says that its HA port is {header.ha_port}")
    if not 0 <= header.first_offset <= header.end_offset:
        raise ReplicationError(
            f"the master says that its log is {header.first_offset} to {header.end_offset}"
        )
    if header.ha_tls not in tuple(PortTls):
        raise ReplicationError(f"the master says that the TLS of its HA port is {header.ha_tls!r}")
    log = LogState(
        first_offset=header.first_offset,
        end_offset=header.end_offset,
        file_bytes=header.log_file_bytes,
        epochs=epochs.parse(header.epochs),
    )
    return Offer(
        token=None if must_cut else bytes.fromhex(header.token),
        ha_port=header.ha_port,
        log=log,
        epoch=header.epoch,
        group=header.group,
        confirm_offset=-1 if header.confirm_offset is None else header.confirm_offset,
        ha_tls=PortTls(header.ha_tls),
    )


def needs_tls(offer: Offer, *, speaks_tls: bool) -> bool:
    """Whether the HA connection begins with TLS. Raises ReplicationError: only one side has it."""
    if offer.ha_tls is PortTls.REQUIRED and not speaks_tls:
        raise ReplicationError("the master's HA port accepts TLS only: set useTLS=true here")
    if offer.ha_tls is PortTls.NONE and speaks_tls:
        raise ReplicationError(
            "this broker speaks TLS (useTLS), and the master's HA port does not: set "
            "tlsServerCertPath and tlsServerKeyPath on the master, or useTLS=false here"
        )
    return speaks_tls


def problem_with(offer: Offer, log: LogState) -> str | None:
    """Why this slave cannot follow that log; None if it can."""
    theirs = offer.log
    if log.file_bytes != theirs.file_bytes:
        return sizes_differ(master=theirs.file_bytes, slave=log.file_bytes)
    if log.is_empty:
        return None
    if log.end_offset < theirs.first_offset:
        return gap(log.end_offset, theirs.first_offset)
    return _logs_differ(log.epochs, log.end_offset, theirs)


# -- the master's side -----------------------------------------------------------------------------


def read_request(request: Command) -> HelloRequest:
    """The hello of a slave. Raises ProtocolError."""
    header = headers.decode(HelloRequest, request.fields)
    # They stay with tokens and refusals, logged, and shown to operators.
    texts = (header.cluster, header.broker_name, header.store_id, header.group or "")
    if (longest := max(map(len, texts))) > _TEXT_CHARS_MAX:
        raise ReplicationError(
            f"a name or an id in it has {longest} characters, {_TEXT_CHARS_MAX} are accepted"
        )
    return header


def refusal_of(
    request: HelloRequest,
    own: Broker,
    log: LogState,
    crc_of: Callable[[int, int], int | None] = lambda log_offset, size_bytes: None,
) -> str | None:
    """Why the master refuses a slave, and what to do; None if it accepts it.

    `crc_of` is the CRC of a part of the master's log, None if it has no such part. Raises
    ReplicationError for epochs that are none.
    """
    problem = other_broker(request, own) or other_range(request, log)
    if problem is not None or request.end_offset == 0:
        return problem
    return _logs_differ(epochs.parse(request.epochs), request.end_offset, log) or other_tail(
        request, crc_of
    )


def other_broker(request: HelloRequest, own: Broker) -> str | None:
    """Why this is no slave of this master."""
    if (request.cluster, request.broker_name) != (own.cluster, own.name):
        return (
            f"this is broker {own.name} of cluster {own.cluster}, the slave is broker "
            f"{request.broker_name} of cluster {request.cluster}: a slave has the brokerName and "
            "the brokerClusterName of its master"
        )
    if request.broker_id < 1:
        return f"the slave has brokerId={request.broker_id}: a slave has a brokerId of 1 or more"
    return None


def other_range(request: HelloRequest, log: LogState) -> str | None:
    """Why this log has not what the slave needs. Raises ReplicationError."""
    if request.log_file_bytes != log.file_bytes:
        return sizes_differ(master=log.file_bytes, slave=request.log_file_bytes)
    epochs.parse(request.epochs)
    if request.end_offset < 0:
        raise ReplicationError(f"the slave says that its log ends at {request.end_offset}")
    if 0 < request.end_offset < log.first_offset:
        return gap(request.end_offset, log.first_offset)
    return None


def other_tail(request: HelloRequest, crc_of: Callable[[int, int], int | None]) -> str | None:
    """Why the slave's log is none that was copied from here, although the epochs are equal."""
    tail_bytes = request.tail_bytes
    if crc_of(request.end_offset - tail_bytes, tail_bytes) not in (None, request.tail_crc):
        return _tails_differ(request.end_offset, tail_bytes)
    return None


def make_response(
    log: LogState,
    *,
    token: bytes | None,
    ha_port: int,
    group: str | None = None,
    confirm_offset: int | None = None,
    ha_tls: PortTls = PortTls.NONE,
) -> HelloResponse:
    """The offer of a master to a slave that it accepts; without token the slave cuts its log."""
    return HelloResponse(
        token=token.hex() if token else "",
        ha_port=ha_port,
        epoch=epochs.last_number(log.epochs),
        epochs=epochs.text(log.epochs),
        end_offset=log.end_offset,
        first_offset=log.first_offset,
        log_file_bytes=log.file_bytes,
        group=group,
        confirm_offset=confirm_offset,
        ha_tls=ha_tls.value,
    )


# -- texts -----------------------------------------------------------------------------------------

HELLO_TO_ITSELF: Final = (
    "the slave has said hello to itself: the address of its master (haMasterAddress, or what the "
    "master advertises by brokerIP1) is its own"
)


def sizes_differ(*, master: int, slave: int) -> str:
    return (
        f"mappedFileSizeCommitLog is {master} on the master and {slave} on the slave: log files "
        f"are copied as they are; set it to {master} on the slave, which must then start with an "
        "empty store"
    )


def gap(slave_end: int, master_first: int) -> str:
    """The text for a slave that is older than the oldest log file of its master."""
    return (
        f"the slave's log ends at {slave_end}, the master's begins at {master_first}: the files "
        "between them have expired; move the slave's store away and start it with an empty one"
    )


def ahead(slave_end: int, master_end: int) -> str:
    """The text for a slave that has more than its master."""
    return (
        f"the slave's log ends at {slave_end}, the master's at {master_end}: the slave has "
        f"{slave_end - master_end} bytes that the master lacks; promote the slave, or move its "
        "store away and start it with an empty one (these messages are lost then)"
    )


def id_is_taken(broker_id: int, other: str) -> str:
    """The text for a slave whose id another slave, with another store, uses now."""
    return (
        f"another slave, at {other}, has brokerId={broker_id} too, and its own store: give each "
        "slave a brokerId of its own, or stop one of the two"
    )


def _logs_differ(slave: Epochs, slave_end: int, master: LogState) -> str | None:
    point = consistent_point(slave, slave_end, master.epochs, master.end_offset)
    if point >= slave_end:
        return None
    if point == master.end_offset:
        return ahead(slave_end, master.end_offset)
    return (
        f"the logs are equal up to {point} only, the slave's ends at {slave_end} (epochs "
        f"{epochs.text(slave)!r}, the master's {epochs.text(master.epochs)!r}): since then both "
        "were masters, or the master lost the end of its log; move the slave's store away and "
        f"start it with an empty one (its {slave_end - point} bytes after {point} are lost then)"
    )


def _tails_differ(slave_end: int, tail_bytes: int) -> str:
    return (
        f"the slave's log ends at {slave_end}, and its last {tail_bytes} bytes are not those that "
        "the master has there, though both have the same epochs: the end of one of the logs was "
        "lost or damaged; move the slave's store away and start it with an empty one (what only "
        "the slave has is lost then)"
    )
