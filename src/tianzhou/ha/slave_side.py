"""A slave's end of one replication connection: frames in, bytes of the log and reports out.

    side = SlaveSide(end_log_offset, log_file_bytes, is_ours=True)
    count = socket.recv_into(side.space())
    side.received(count)                      # raises ReplicationError: close the connection
    log_offset, data = side.contents()        # everything received that is not appended yet
    side.appended(store.append_copied(data))  # the incomplete record at its end stays
    report = side.report(store.end_log_offset, now_ms)

One buffer serves as receive buffer and as the retained part of the log. The bodies of the frames in
it are joined, by moving whatever is shorter over the head in between:

    | appended | retained, joined bodies | free | received, not parsed | free |
               ^ _start                  ^ _end   ^ _parsed            ^ _received

So a record that is cut by frames is whole without another copy, and the store gets as many records
in one call as were received. No I/O and no clock here.
"""

from typing import Final

from tianzhou.errors import ReplicationError
from tianzhou.ha import frames
from tianzhou.ha.epochs import Epoch, Epochs, appended, last_number

RECEIVE_BYTES_MAX: Final = 1024 * 1024
"""Received at a time, so that other work of the event loop gets its turn."""
BUFFER_BYTES: Final = 2 * RECEIVE_BYTES_MAX
RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
"""A master that sends so much without the end of a record is refused."""
_RECEIVE_BYTES_MIN: Final = 64 * 1024
_CHEAP_BYTES: Final = 64 * 1024
"""Moved to the front of the buffer always, so that the same memory is used again and again."""


class SlaveSide:
    """The state of one connection to a master; a new connection begins with a new one."""

    def __init__(
        self,
        end_log_offset: int | None,
        log_file_bytes: int,
        *,
        is_ours: bool,
        is_flushed: bool = False,
        epochs: Epochs = (),
        report_interval_ms: int = 5000,
        record_bytes_max: int = RECORD_BYTES_MAX,
    ) -> None:
        """`end_log_offset` is None for an empty log that may begin at any file of the master.

        Without `is_ours` the protocol is default HA. With `is_flushed` the reports say what is on
        the disk.
        """
        self.is_ours = is_ours
        self.next_log_offset = end_log_offset
        """Where the next body has to begin; None until the first frame of an empty log."""
        self.epochs = epochs
        """Those of the log, with new ones from the master, which the caller saves before it appends
        (`epochs_changed`)."""
        self.epochs_changed = False
        self.frame_count = 0
        self.master_end = 0
        """The end of the master's log as far as its frames show it."""
        self.confirm_offset = -1
        """Up to where the master says that readers may read; only in our protocol."""
        self.agreed_epoch: int | None = None
        """The master of this epoch has agreed that this slave takes over."""
        self.changes: list[bytes] = []
        """Announced changes of tables; the caller applies and removes them before it reports."""
        self._log_file_bytes = log_file_bytes
        self._is_empty = end_log_offset is None
        self._is_flushed = is_flushed
        self._report_interval_ms = report_interval_ms
        self._record_bytes_max = record_bytes_max
        self._reported = 0
        self._report_due_ms = 0
        self._head_bytes = frames.HEAD.size if is_ours else frames.DEFAULT_HEAD.size
        self._body_left = 0
        """Bytes of the current body that were not received yet."""
        self._use(bytearray(BUFFER_BYTES))
        self._start: int = 0
        self._end: int = 0
        self._parsed: int = 0
        self._received: int = 0

    # -- receiving -------------------------------------------------------------------------------

    def space(self) -> memoryview:
        """Where to receive; call `received` before the next call."""
        self._make_space()
        return self._view[self._received : self._received + RECEIVE_BYTES_MAX]

    def received(self, count: int) -> None:
        """Parses what was written to `space`. Raises ReplicationError; what is before it stays."""
        self._received += count
        while True:
            unparsed = self._received - self._parsed
            if self._body_left:
                if not unparsed:
                    return
                self._join(min(unparsed, self._body_left))
            elif unparsed < self._head_bytes or not self._read_head(unparsed):
                return

    def _read_head(self, unparsed: int) -> bool:
        """Parses the next head; False if more has to be received first."""
        if self.is_ours:
            state, body_bytes, log_offset, *rest = frames.HEAD.unpack_from(
                self._buffer, self._parsed
            )
            head = frames.Head(log_offset, body_bytes, *rest)
            if state == frames.CHANGES_STATE:
                return self._read_changes(head, unparsed)
            if state == frames.HANDOVER_STATE:
                self._read_agreement(head)
                return True
            if state != frames.TRANSFER_STATE:
                raise ReplicationError(f"the master sent a frame of state {state}")
        else:
            head = frames.Head(*frames.DEFAULT_HEAD.unpack_from(self._buffer, self._parsed))
        self._check(head)
        if self.is_ours:
            self._check_epoch(head)
            self.confirm_offset = max(self.confirm_offset, head.confirm_offset)
        self._parsed += self._head_bytes
        self._body_left = head.body_bytes
        self._is_empty = self._is_empty and not head.body_bytes
        # A heartbeat does not bind an empty log: the master's may be empty, too.
        if head.body_bytes or self.next_log_offset is not None:
            self.next_log_offset = head.log_offset + head.body_bytes
        self.master_end = max(self.master_end, head.log_offset + head.body_bytes)
        self.frame_count += 1
        return True

    def _read_changes(self, head: frames.Head, unparsed: int) -> bool:
        size = head.body_bytes
        if not 0 <= size <= frames.CHANGES_BYTES_MAX:
            raise ReplicationError(
                f"the master announced changes of {size} bytes, at most "
                f"{frames.CHANGES_BYTES_MAX} are accepted"
            )
        begin = self._parsed + self._head_bytes
        if unparsed < self._head_bytes + size:
            return False
        self.changes.append(bytes(self._view[begin : begin + size]))
        self._parsed = begin + size
        self.frame_count += 1
        return True

    def _read_agreement(self, head: frames.Head) -> None:
        received = 0 if self.next_log_offset is None else self.next_log_offset
        if head.body_bytes or head.log_offset != received:
            raise ReplicationError(
                f"the master agreed to a switch at log offset {head.log_offset} with "
                f"{head.body_bytes} bytes, this log is received up to {received}"
            )
        self.agreed_epoch = head.epoch
        self.confirm_offset = max(self.confirm_offset, head.confirm_offset)
        self._parsed += self._head_bytes
        self.frame_count += 1

    def _check(self, head: frames.Head) -> None:
        log_offset, body_bytes = head.log_offset, head.body_bytes
        if not 0 <= body_bytes <= frames.BODY_BYTES_ACCEPTED:
            raise ReplicationError(
                f"the master sent a body of {body_bytes} bytes, at most "
                f"{frames.BODY_BYTES_ACCEPTED} are accepted"
            )
        position = log_offset % self._log_file_bytes
        if self.next_log_offset is None:
            if position or log_offset < 0:
                raise ReplicationError(
                    f"the master begins at log offset {log_offset}, where no file begins if "
                    f"mappedFileSizeCommitLog is {self._log_file_bytes} as here: set it to the "
                    "master's value"
                )
        elif log_offset != self.next_log_offset:
            raise ReplicationError(
                f"the master sent log offset {log_offset}, {self.next_log_offset} comes next"
            )
        if position + body_bytes > self._log_file_bytes:
            raise ReplicationError(
                f"the master sent {body_bytes} bytes at log offset {log_offset} as part of one "
                f"log file, which cross the end of a file here: mappedFileSizeCommitLog is "
                f"{self._log_file_bytes} here, set it to the master's value"
            )

    def _check_epoch(self, head: frames.Head) -> None:
        epoch = Epoch(head.epoch, head.epoch_start)
        if epoch == (self.epochs[-1] if self.epochs else (0, 0)):
            return
        # What is here already belongs to older epochs. Only an empty log begins within one.
        begins_within = self._is_empty and not self.epochs and 0 <= epoch.start < head.log_offset
        begins_here = epoch.start == head.log_offset
        if epoch.number <= last_number(self.epochs) or not (begins_here or begins_within):
            raise ReplicationError(
                f"the master sent log offset {head.log_offset} as part of epoch {epoch.number} "
                f"from {epoch.start}, the log here is of epoch {last_number(self.epochs)}"
            )
        self.epochs = appended(self.epochs, epoch.number, epoch.start)
        self.epochs_changed = True

    # -- the log ---------------------------------------------------------------------------------

    def contents(self) -> tuple[int, memoryview]:
        """The bytes of the log that are not appended yet, and the log offset of the first."""
        log_offset = (self.next_log_offset or 0) - self._body_left - (self._end - self._start)
        return log_offset, self._view[self._start : self._end]

    def appended(self, count: int) -> None:
        """The store has that many bytes more. Raises ReplicationError for a record too long."""
        assert 0 <= count <= self._end - self._start
        self._start += count
        if self._end - self._start > self._record_bytes_max:
            log_offset, _ = self.contents()
            raise ReplicationError(
                f"the record at log offset {log_offset} has more than {self._record_bytes_max} "
                "bytes"
            )

    # -- reports ---------------------------------------------------------------------------------

    def first_report(self, now_ms: int) -> bytes:
        """What a connection begins with: where the master is to begin; 0: an empty log.

        Of a slave that acknowledges what is on its disk our master takes only a second report as an
        acknowledgement, as at first such a slave says what it has. Here all of that is on the disk.
        """
        report = self._encode_report(self.next_log_offset or 0, now_ms)
        return report * 2 if self.is_ours and self._is_flushed else report

    def handover_request(self) -> bytes:
        """Asks the master to hand over; a report like the last one."""
        return frames.encode_report(self._reported, frames.HANDOVER_STATE)

    def report(self, log_offset: int, now_ms: int) -> bytes | None:
        """The next report if one is due: after growth, and after the interval.

        `log_offset` is what the slave acknowledges: the end of its log, or of its flushed part.
        """
        if log_offset > self._reported or now_ms >= self._report_due_ms:
            return self._encode_report(max(log_offset, self._reported), now_ms)
        return None

    def _encode_report(self, log_offset: int, now_ms: int) -> bytes:
        self._reported = log_offset
        self._report_due_ms = now_ms + self._report_interval_ms
        encode = frames.encode_report if self.is_ours else frames.encode_default_report
        return encode(log_offset)

    # -- the buffer ------------------------------------------------------------------------------

    def _use(self, buffer: bytearray) -> None:
        self._buffer = buffer
        self._view = memoryview(buffer)

    def _join(self, count: int) -> None:
        """Adds received bytes of a body to the retained part."""
        view, start, end, parsed = self._view, self._start, self._end, self._parsed
        if end != parsed:
            if end - start <= count:
                view[parsed - (end - start) : parsed] = view[start:end]
                self._start += parsed - end
                self._end = parsed
            else:
                view[end : end + count] = view[parsed : parsed + count]
        self._end += count
        self._parsed += count
        self._body_left -= count

    def _make_space(self) -> None:
        retained, unparsed = self._end - self._start, self._received - self._parsed
        free = len(self._buffer) - self._received
        if retained + unparsed > _CHEAP_BYTES and free >= _RECEIVE_BYTES_MIN:
            return
        view, buffer = self._view, self._buffer
        if retained + unparsed > len(buffer) // 2:
            buffer = bytearray(2 * len(buffer))
        elif not retained and len(buffer) > BUFFER_BYTES:
            buffer = bytearray(BUFFER_BYTES)
        self._use(buffer)
        # In this order: the retained part lies before the unparsed one.
        self._view[:retained] = view[self._start : self._end]
        self._view[retained : retained + unparsed] = view[self._parsed : self._received]
        self._start, self._end = 0, retained
        self._parsed, self._received = retained, retained + unparsed
