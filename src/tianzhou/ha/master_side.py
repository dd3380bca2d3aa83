"""One connection on the HA port of a master, without its socket: both protocols.

    receive      bytes of the slave: the opening with its token (ours), reports
    next_frame   what to send next: a range of the log, or a heartbeat
    sent         the socket accepted so many bytes
    overdue      why the connection must be closed now, if it must
    due_ms       when to ask `next_frame` and `overdue` again at the latest

The first four bytes decide: "TZHA" begins our opening, everything else is a report of default HA.

The first report says where the stream begins. In default HA, and for a slave that acknowledges what
is on its disk, it acknowledges nothing; nor does a report below the begin of the stream. A report
beyond what was sent on this connection can only be an error: it is refused, and changes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from tianzhou.errors import ProtocolError
from tianzhou.ha.frames import (
    BODY_BYTES_MAX,
    CHANGES_BYTES_MAX,
    CHANGES_STATE,
    DEFAULT_BODY_BYTES_MAX,
    DEFAULT_REPORT,
    HANDOVER_STATE,
    OPENING,
    OPENING_BYTES,
    REPORT,
    TRANSFER_STATE,
    Head,
    encode_default_head,
    encode_head,
)
from tianzhou.ha.tokens import Hello
from tianzhou.limits import HA_CHANGES_MAX

_RATE_MS: Final = 1000
_NEVER_MS: Final = 2**62
_TLS_FIRST_BYTE: Final = b"\x16"


class LogBounds(NamedTuple):
    """The master's log."""

    first: int
    """Log offset of the oldest file."""
    end: int
    file_bytes: int
    confirmed: int = 2**63 - 1
    """What readers may see: slaves in default HA, too, as they cannot take anything back."""


class EpochRange(NamedTuple):
    """A part of the log that one master wrote; `stop` is None in the current epoch."""

    epoch: int
    start: int
    stop: int | None = None


FIXED_EPOCH: Final = EpochRange(1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Times and sizes; the defaults are RocketMQ's where it has one."""

    heartbeat_ms: int = 5000
    """Default HA: a heartbeat is sent when nothing was written for so long."""
    own_heartbeat_ms: int = 500
    silence_ms: int = 20_000
    """A connection is closed that sends no report, or accepts no byte, for so long."""
    first_report_ms: int = 20_000
    """The same before the first report."""
    own_first_report_ms: int = 5_000
    """The same after our opening."""
    handshake_ms: int = 10_000
    """For a TLS handshake, from its first byte on."""
    without_older_ms: int = 3000
    """slaveTimeout: a slave that lacks the older files acknowledges nothing for so long, because a
    send that waits for a slave may be in one of them."""
    batch_bytes: int = DEFAULT_BODY_BYTES_MAX
    """Default HA: the longest body."""
    own_batch_bytes: int = BODY_BYTES_MAX


class SlaveState(StrEnum):
    """The state of a connection, as operators see it."""

    WAITING = "waiting for the first report"
    CATCHING_UP = "catching up"
    IN_STEP = "in step"
    CANNOT_FOLLOW = "cannot follow"
    REFUSED = "refused"


class SlaveRefused(ProtocolError):
    """The connection must be closed."""

    def __init__(self, text: str, *, is_slave: bool = False) -> None:
        super().__init__(text)
        self.is_slave = is_slave
        """It is a slave that cannot follow, and not only a peer that sent invalid bytes."""


class Frame(NamedTuple):
    """What to send next: a head, or a frame with changed entries, and that part of the log."""

    head: bytes
    log_offset: int
    body_bytes: int


class _Rate:
    """Bytes per second, of the last full second."""

    __slots__ = ("_began_ms", "_bytes", "_last")

    def __init__(self, now_ms: int) -> None:
        self._began_ms = now_ms
        self._bytes = self._last = 0

    def add(self, count: int, now_ms: int) -> None:
        self._bytes += count
        self._roll(now_ms)

    def per_second(self, now_ms: int) -> int:
        self._roll(now_ms)
        return self._last

    def _roll(self, now_ms: int) -> None:
        elapsed_ms = now_ms - self._began_ms
        if elapsed_ms >= _RATE_MS:
            self._last = self._bytes * 1000 // elapsed_ms
            self._began_ms, self._bytes = now_ms, 0


class MasterSide:
    """The master's state of one connection. Times are of any monotonic clock."""

    def __init__(
        self,
        host: str,
        rules: Rules,
        now_ms: int,
        *,
        redeem: Callable[[bytes], Hello | None],
        allows_default: Callable[[str], bool] = lambda host: True,
        epoch_at: Callable[[int], EpochRange] = lambda log_offset: FIXED_EPOCH,
        confirm_offset: Callable[[], int] = lambda: -1,
        may_heartbeat: Callable[[], bool] = lambda: True,
    ) -> None:
        """`redeem` exchanges a token; `allows_default` admits hosts to default HA.

        No heartbeat is sent unless `may_heartbeat`: this broker hangs.
        """
        self._host = host
        self._rules = rules
        self._redeem = redeem
        self._allows_default = allows_default
        self._epoch_at = epoch_at
        self._confirm_offset = confirm_offset
        self._may_heartbeat = may_heartbeat
        self._partial = bytearray()
        self._is_known = False
        """The protocol is known."""
        self.hello: Hello | None = None
        """Of a slave of ours; None in default HA."""
        self._began_ms = self._report_ms = self._written_ms = now_ms
        self._start = self._position = 0
        """Where the stream began, and the log offset of the next frame."""
        self._left_bytes = self._left_body_bytes = 0
        """Of the frame that is being sent."""
        self._acknowledges_from_ms = now_ms
        self.is_started = False
        """The first report was received."""
        self.reported = 0
        self.acknowledged = 0
        self.problem: str | None = None
        """Why the slave cannot follow, though it stays connected."""
        self._rate = _Rate(now_ms)
        self.asks_handover = False
        """The slave has asked the master to hand over to it; the caller resets it."""
        self._agreed_epoch: int | None = None
        self._changes: dict[str, bytes] = {}
        """Lines about entries of tables, by entry, to be sent before more of the log."""
        self.lacks_tls = False
        """The connection is plain, and TLS is enforced."""
        self._is_handshake = False

    # -- who it is ---------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the slave; default HA has no identity but the address."""
        return f"id:{self.hello.broker_id}" if self.hello else self._host

    @property
    def is_ours(self) -> bool:
        return self.hello is not None

    @property
    def sent_log_offset(self) -> int:
        """The end of what was sent."""
        return self._position - self._left_body_bytes

    def state(self, log: LogBounds) -> SlaveState:
        if self.problem is not None:
            return SlaveState.CANNOT_FOLLOW
        if not self.is_started:
            return SlaveState.WAITING
        is_in_step = self.sent_log_offset >= self._end(log)
        return SlaveState.IN_STEP if is_in_step else SlaveState.CATCHING_UP

    def bytes_per_second(self, now_ms: int) -> int:
        return self._rate.per_second(now_ms)

    # -- TLS ---------------------------------------------------------------------------------------

    def begin_handshake(self, now_ms: int) -> None:
        """The peer begins with TLS."""
        self._is_handshake, self._began_ms = True, now_ms

    def end_handshake(self, now_ms: int) -> None:
        """What is received from now on was encrypted."""
        self._is_handshake, self._began_ms = False, now_ms

    # -- receiving ---------------------------------------------------------------------------------

    def receive(self, data: bytes, log: LogBounds, now_ms: int) -> None:
        """Bytes of the slave. Raises SlaveRefused; then the connection must be closed."""
        self._partial += data
        if not self._is_known and not self._identify(now_ms):
            return
        report = REPORT if self.hello else DEFAULT_REPORT
        whole_bytes = len(self._partial) // report.size * report.size
        whole = bytes(self._partial[:whole_bytes])
        del self._partial[:whole_bytes]
        for fields in report.iter_unpack(whole):
            if self.hello:
                self._check_state(fields[0])
            self._report(fields[-1], log, now_ms)

    def _check_state(self, state: int) -> None:
        if state == HANDOVER_STATE and self.is_started:
            self.asks_handover = True
        elif state != TRANSFER_STATE:
            raise SlaveRefused(f"a report has state {state}, not {TRANSFER_STATE}")

    def _identify(self, now_ms: int) -> bool:
        """Whether enough bytes are there to know the protocol."""
        if len(self._partial) < len(OPENING):
            return False
        if not self._partial.startswith(OPENING):
            if self._partial.startswith(_TLS_FIRST_BYTE):
                raise SlaveRefused(
                    "it speaks TLS, and this port does not: set tlsServerCertPath here, or "
                    "useTLS=false on the slave"
                )
            if not self._allows_default(self._host):
                raise SlaveRefused(
                    "default HA has no account, no certificate and no TLS, and haAllowedAddresses "
                    "does not name this address"
                )
            self._is_known = True
            return True
        if self.lacks_tls:
            raise SlaveRefused("it speaks no TLS, which is enforced here: set useTLS=true there")
        if len(self._partial) < OPENING_BYTES:
            return False
        self.hello = self._redeem(bytes(self._partial[len(OPENING) : OPENING_BYTES]))
        if self.hello is None:
            raise SlaveRefused("its token is unknown, used or too old")
        del self._partial[:OPENING_BYTES]
        self._is_known = True
        self._began_ms = now_ms
        return True

    def _report(self, log_offset: int, log: LogBounds, now_ms: int) -> None:
        if log_offset < 0:
            raise SlaveRefused(
                f"its report means that its log ends at {log_offset}: that is no slave"
            )
        if not self.is_started:
            self._start_at(log_offset, log)
            if self._start > max(log_offset, log.first):
                self._acknowledges_from_ms = now_ms + self._rules.without_older_ms
            self.is_started = True
            self._written_ms = now_ms
        elif log_offset > min(self.sent_log_offset, log.end):
            raise SlaveRefused(
                f"it reported {log_offset}, and was sent the log up to {self.sent_log_offset} only"
            )
        elif self.problem is None and log_offset >= max(self.reported, self._start):
            self.reported = log_offset
            if now_ms >= self._acknowledges_from_ms:
                self.acknowledged = log_offset
        self._report_ms = now_ms

    def _start_at(self, log_offset: int, log: LogBounds) -> None:
        if log_offset > log.end:
            raise SlaveRefused(
                f"its log ends at {log_offset}, after the end of this one, {log.end}: it is no "
                "copy of this log",
                is_slave=True,
            )
        if self.hello and log_offset > self.hello.end_offset:
            raise SlaveRefused(
                f"it reported {log_offset}, and {self.hello.end_offset} in its hello"
            )
        self._start = self._position = log_offset
        if not log_offset:
            self._start = self._position = self._first_of_all(log)
        elif log_offset < log.first:
            self._cannot_follow(log_offset, log)
            return
        self.reported = log_offset
        if self.hello and not self.hello.is_flushed:
            # The hello has compared the epochs up to there.
            self.acknowledged = log_offset

    def _first_of_all(self, log: LogBounds) -> int:
        """Where a slave without a log begins; Apache's get the last file only, as from Apache's."""
        if self.hello:
            return log.first
        end = self._end(log)
        return max(end - end % log.file_bytes, log.first)

    def _cannot_follow(self, log_offset: int, log: LogBounds) -> None:
        """Default HA cannot say more than heartbeats do, so such a slave stays connected."""
        text = (
            f"its log ends at {log_offset}, before the oldest file here, {log.first}: delete its "
            "store, so that it copies the log anew"
        )
        if self.hello:
            raise SlaveRefused(text, is_slave=True)
        self.problem = text

    # -- sending -----------------------------------------------------------------------------------

    def has_more(self, log: LogBounds) -> bool:
        """Whether bytes of the log are waiting to be sent."""
        return self.is_started and self.problem is None and self._position < self._end(log)

    def _end(self, log: LogBounds) -> int:
        """The end of what the slave gets."""
        return log.end if self.hello else min(log.end, log.confirmed)

    @property
    def next_log_offset(self) -> int:
        """Where the next body begins."""
        return self._position

    def agree(self, epoch: int) -> None:
        """Let the slave take over from an epoch: the next frame that has no body says so."""
        assert self.hello is not None
        self._agreed_epoch = epoch

    def announce(self, entry: str, line: bytes) -> None:
        """Send a line about an entry of a table; it replaces one that was not sent yet.

        Of a slave that does not receive, the oldest of too many are dropped: it reads the tables
        after any of them. Slaves of Apache's copy tables periodically.
        """
        if self.hello is None or len(line) >= CHANGES_BYTES_MAX:
            return
        if entry not in self._changes and len(self._changes) >= HA_CHANGES_MAX:
            del self._changes[next(iter(self._changes))]
        self._changes[entry] = line

    def next_frame(self, log: LogBounds, now_ms: int, bytes_max: int) -> Frame | None:
        """The next frame with at most `bytes_max` of the log (0: a heartbeat at most).

        None if there is nothing to send now, or while another frame is being sent. Raises
        SlaveRefused.
        """
        if self._left_bytes or not self.is_started:
            return None
        if self._changes:
            return self._changes_frame(now_ms)
        if bytes_max > 0 and self.has_more(log):
            if self._position >= log.first:
                return self._frame(self._body_bytes(log, bytes_max), now_ms)
            self._cannot_follow(self._position, log)
        if self._agreed_epoch is not None:
            return self._frame(0, now_ms)
        if now_ms - self._written_ms < self._heartbeat_ms:
            return None
        if not self._may_heartbeat():
            self._written_ms = now_ms  # asked again when the next one is due
            return None
        return self._frame(0, now_ms)

    def _body_bytes(self, log: LogBounds, bytes_max: int) -> int:
        """A body never crosses the end of a log file or of an epoch."""
        position, rules = self._position, self._rules
        stop = min(self._end(log), position - position % log.file_bytes + log.file_bytes)
        if self.hello is None:
            return min(stop - position, rules.batch_bytes, bytes_max)
        epoch_stop = self._epoch_at(position).stop
        if epoch_stop is not None and epoch_stop > position:
            stop = min(stop, epoch_stop)
        return min(stop - position, rules.own_batch_bytes, bytes_max)

    def _frame(self, body_bytes: int, now_ms: int) -> Frame:
        position = self._position
        if self.hello is None:
            head = encode_default_head(position, body_bytes)
        else:
            epoch, epoch_start, _ = self._epoch_at(position)
            state = TRANSFER_STATE
            if not body_bytes and self._agreed_epoch is not None:
                state, epoch, self._agreed_epoch = HANDOVER_STATE, self._agreed_epoch, None
            head = encode_head(
                Head(position, body_bytes, epoch, epoch_start, self._confirm_offset()), state
            )
        self._left_bytes = len(head) + body_bytes
        self._left_body_bytes = body_bytes
        self._position += body_bytes
        self._written_ms = now_ms
        return Frame(head, position, body_bytes)

    def _changes_frame(self, now_ms: int) -> Frame:
        lines, size = list[bytes](), 0
        for entry, line in tuple(self._changes.items()):
            size += len(line) + 1
            if size > CHANGES_BYTES_MAX:
                break
            lines.append(line + b"\n")
            del self._changes[entry]
        position, body = self._position, b"".join(lines)
        epoch, epoch_start, _ = self._epoch_at(position)
        head = Head(position, len(body), epoch, epoch_start, self._confirm_offset())
        frame = encode_head(head, CHANGES_STATE) + body
        self._left_bytes, self._left_body_bytes = len(frame), 0
        self._written_ms = now_ms
        return Frame(frame, position, 0)

    def sent(self, count: int, now_ms: int) -> None:
        """The socket accepted so many bytes of the frame."""
        assert 0 < count <= self._left_bytes
        self._left_bytes -= count
        self._left_body_bytes = min(self._left_body_bytes, self._left_bytes)
        self._written_ms = now_ms
        self._rate.add(count, now_ms)

    # -- time --------------------------------------------------------------------------------------

    @property
    def _heartbeat_ms(self) -> int:
        rules = self._rules
        if self.hello is None:
            return rules.heartbeat_ms
        return min(rules.own_heartbeat_ms, rules.heartbeat_ms)

    def _deadline(self) -> tuple[int, str]:
        """When the connection must be closed, and why."""
        rules = self._rules
        if self._is_handshake:
            limit_ms = rules.handshake_ms
            return self._began_ms + limit_ms, f"no TLS handshake within {limit_ms} ms"
        if not self.is_started:
            limit_ms = rules.own_first_report_ms if self.hello else rules.first_report_ms
            return self._began_ms + limit_ms, f"no report within {limit_ms} ms"
        limit_ms = rules.silence_ms
        if self._left_bytes and self._written_ms < self._report_ms:
            return self._written_ms + limit_ms, f"it accepted no byte for {limit_ms} ms"
        return self._report_ms + limit_ms, f"no report for {limit_ms} ms"

    def overdue(self, now_ms: int) -> str | None:
        """Why the connection must be closed now; None if it need not be."""
        deadline_ms, reason = self._deadline()
        return reason if now_ms >= deadline_ms else None

    def due_ms(self) -> int:
        """When something may be due, if nothing is received or sent until then."""
        is_idle = self.is_started and not self._left_bytes
        heartbeat_ms = self._written_ms + self._heartbeat_ms if is_idle else _NEVER_MS
        return min(heartbeat_ms, self._deadline()[0])
