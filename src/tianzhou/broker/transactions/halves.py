"""The half messages of a broker: redirecting, committing and rolling back, and which are open.

The state is on disk in RocketMQ's form. An end is a message of HALF_OP_TOPIC. How far all halves
have ended, and which ends are still needed, are consumer offsets of the group CID_RMQ_SYS_TRANS.
Offsets are committed only once the log is on disk, and with SYNC_MASTER on slaves (`durability`),
up to where it ended when they were computed: neither after a power cut nor on a slave that becomes
the master does a half count as ended whose copy is lost.

After a crash, a half may be checked twice, and a message whose end was not written may be committed
twice: consumers may receive it again, but always receive it.
"""

import asyncio
import logging
from typing import NamedTuple

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.storing.durability import Durability
from tianzhou.broker.storing.redirects import MessageWriter
from tianzhou.broker.tables.offsets import NOT_FOUND, OffsetTable
from tianzhou.broker.transactions import rules
from tianzhou.broker.transactions.rules import GROUP, QUEUE_ID, EndedHalves
from tianzhou.clock import Ages, Clock
from tianzhou.config.live import LiveSettings
from tianzhou.errors import RequestError, StoreError
from tianzhou.message import Host, StoredMessage
from tianzhou.names import CHECK_MAX_TOPIC, HALF_OP_TOPIC, HALF_TOPIC
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.records.record import decode_record
from tianzhou.store.message_store import Appended, Draft, MessageStore

log = logging.getLogger(__name__)

ENDS_PER_STEP = 256
_READ_COUNT = 32
_RENEWALS_MAX = 50_000


class _Progress(NamedTuple):
    half_offset: int
    end_offset: int
    log_offset: int
    """Both offsets are valid once the log is secured up to here."""
    noted_ms: int


class Halves:
    """All half messages of a broker."""

    def __init__(
        self,
        settings: LiveSettings[BrokerConfig],
        store: MessageStore,
        durability: Durability,
        writer: MessageWriter,
        offsets: OffsetTable,
        clock: Clock,
        steady: Clock,
        store_host: Host,
    ) -> None:
        self.settings = settings
        self.store = store
        # An end may name a half that is not confirmed yet, and is stored behind it.
        self._log = store.with_unconfirmed
        self._durability = durability
        self._writer = writer
        self._offsets = offsets
        self._clock = clock
        self.steady = steady
        self.ages = Ages(clock, steady)
        self.store_host = store_host
        self.ended = EndedHalves(self._start_of(HALF_TOPIC))
        self.end_done = self.end_read = self._start_of(HALF_OP_TOPIC)
        """Queue offsets of HALF_OP_TOPIC: the first end still needed, and the next one to read."""
        self._committed = (self.ended.first, self.end_done)
        self._progress: _Progress | None = None
        self._renewals: dict[int, int] = {}
        self._unwritten: list[int] = []
        self._unwritten_since_ms = 0
        self._refusal_logged = False
        self.ends_known = asyncio.Event()
        """Set when all ends of former runs are read; until then, an ended half may seem open."""

    def _start_of(self, topic: str) -> int:
        """The committed offset, within what the store has: a log that lost its end is shorter."""
        committed = self._offsets.find(GROUP, topic, QUEUE_ID)
        low = self.store.min_offset(topic, QUEUE_ID)
        high = self._log.max_offset(topic, QUEUE_ID)
        return low if committed == NOT_FOUND else min(max(committed, low), high)

    # -- storing and ending ------------------------------------------------------------------------

    def redirect(self, draft: Draft, named: dict[str, str]) -> Draft | None:
        """A `Redirect`: transactional messages become halves. Raises RequestError."""
        if not rules.is_half(draft, named):
            return None
        if self.settings.config.reject_transaction_message:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                "this broker accepts no transactional messages (rejectTransactionMessage)",
            )
        return rules.as_half(draft, named)

    def open_count(self) -> int:
        """How many halves have not ended."""
        return self.ended.open_count(self._log.max_offset(HALF_TOPIC, QUEUE_ID))

    def find(self, log_offset: int) -> StoredMessage | None:
        """The half at a log offset."""
        message = self._message_at(log_offset)
        return message if message is not None and message.topic == HALF_TOPIC else None

    def _message_at(self, log_offset: int) -> StoredMessage | None:
        fields = self.store.log.decode(log_offset, read_body=True)
        return None if fields is None else StoredMessage(*fields)

    def commit(self, half: StoredMessage) -> Appended | None:
        """Deliver the message of a half and end it; None if the half had ended before.

        Raises RequestError, StoreError, RecordError; then the half stays open.
        """
        queue_offset = self._newest(half.queue_offset)
        if queue_offset in self.ended:
            return None
        queue = rules.real_queue(half)
        if queue is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the half names no topic and queue")
        appended = self._writer.append(rules.committed(half, *queue, self.store_host))
        self.end(queue_offset)
        return appended

    def roll_back(self, half: StoredMessage) -> bool:
        """End a half without delivering it; False if it had ended before. Raises StoreError."""
        queue_offset = self._newest(half.queue_offset)
        if queue_offset in self.ended:
            return False
        if self.store.refusal is not None:
            raise self.store.refusal
        self.end(queue_offset)
        return True

    def resume(self, log_offset: int) -> StoredMessage | None:
        """Check a half again that was given up; None if there is none. Raises StoreError."""
        message = self._message_at(log_offset)
        if message is None or message.topic not in (CHECK_MAX_TOPIC, HALF_TOPIC):
            return None
        self.store.append(rules.renewed(message, 0, self.store_host))
        return message

    def renew(self, half: StoredMessage, draft: Draft) -> Appended:
        """Store a half again for a check and end the old one. Raises StoreError, RecordError."""
        appended = self.store.append(draft)
        self.end(half.queue_offset)
        self._renewals[half.queue_offset] = appended.queue_offset
        if len(self._renewals) > _RENEWALS_MAX:
            del self._renewals[next(iter(self._renewals))]
        return appended

    def _newest(self, queue_offset: int) -> int:
        """The current offset of a half that the producer names by an offset from before a check.

        Only the latest renewals are known. A producer that names an older offset, or one from
        before a restart, ends nothing and is checked again. RocketMQ would deliver the message at
        once, check all the same, and deliver it a second time.
        """
        while (renewed := self._renewals.get(queue_offset)) is not None:
            queue_offset = renewed
        return queue_offset

    def end(self, queue_offset: int) -> None:
        """Mark a half as ended and queue its end for `write_ends`."""
        if self.ended.add(queue_offset):
            if not self._unwritten:
                self._unwritten_since_ms = self.steady()
            self._unwritten.append(queue_offset)

    # -- writing ends ------------------------------------------------------------------------------

    def write_ends(self, *, force: bool = False) -> None:
        """Write the pending ends; without `force`, only if the batch is due or full."""
        config, now_ms = self.settings.config, self.steady()
        waited_ms = now_ms - self._unwritten_since_ms
        is_due = waited_ms >= config.transaction_op_batch_interval
        # A queue offset of an older store takes about eight bytes with its comma.
        is_full = len(self._unwritten) * 8 >= config.transaction_op_msg_max_size
        if not self._unwritten or not (force or is_due or is_full):
            return
        drafts = rules.end_drafts(
            self._unwritten, config.transaction_op_msg_max_size, self._clock(), self.store_host
        )
        written_count = 0
        try:
            for draft, count in drafts:
                appended = self.store.append(draft)
                written_count += count
                if appended.queue_offset == self.end_read:
                    # Ends that this process writes need not be read.
                    self.end_read += 1
        except StoreError as e:
            self.log_refusal(e)
        del self._unwritten[:written_count]
        self._unwritten_since_ms = now_ms

    def log_refusal(self, error: StoreError) -> None:
        """Log that the store refuses appends, once per check round."""
        if not self._refusal_logged:
            log.warning("transactions: the store refuses appends, checks are delayed: %s", error)
        self._refusal_logged = True

    def begin_round(self) -> None:
        """A check round begins: drop what the store has deleted."""
        self.ended.drop_before(self.store.min_offset(HALF_TOPIC, QUEUE_ID))
        self._refusal_logged = False

    # -- reading ends ------------------------------------------------------------------------------

    def read_ends(self) -> bool:
        """Read some of the ends that a former run wrote; True if none is left."""
        half_end = self._log.max_offset(HALF_TOPIC, QUEUE_ID)
        for _ in range(ENDS_PER_STEP // _READ_COUNT):
            high = self._log.max_offset(HALF_OP_TOPIC, QUEUE_ID)
            if self.end_read >= high:
                return True
            read = self._log.read(HALF_OP_TOPIC, QUEUE_ID, self.end_read, _READ_COUNT)
            for record in read.records:
                for queue_offset in rules.ended_by(decode_record(record, check_crc=False)):
                    # An offset beyond the last half would allocate bits for all up to it.
                    if queue_offset < half_end:
                        self.ended.add(queue_offset)
            self.end_read = min(max(read.next_offset, self.end_read + 1), high)
        return False

    def advance_ends(self) -> bool:
        """Move `end_done` over ends whose halves all lie before the first open one.

        False if there may be more of them.
        """
        for _ in range(ENDS_PER_STEP // _READ_COUNT):
            if self.end_done >= self.end_read:
                return True
            read = self._log.read(HALF_OP_TOPIC, QUEUE_ID, self.end_done, _READ_COUNT)
            for record in read.records:
                end = decode_record(record, check_crc=False)
                if any(each >= self.ended.first for each in rules.ended_by(end)):
                    self.end_done = max(self.end_done, end.queue_offset)
                    return True
            self.end_done = min(max(read.next_offset, self.end_done + 1), self.end_read)
        return False

    # -- progress ----------------------------------------------------------------------------------

    def note_progress(self) -> None:
        """Commit the noted offsets if the log is secured so far, then note the current ones."""
        noted, now_ms = self._progress, self.steady()
        if noted is not None:
            if not self._durability.is_secured(noted.log_offset, now_ms - noted.noted_ms):
                return
            self._commit_progress(noted.half_offset, noted.end_offset)
        current = (self.ended.first, self.end_done)
        if current != self._committed:
            self._progress = _Progress(*current, self.store.end_log_offset, now_ms)

    async def flush_progress(self, timeout_s: float) -> None:
        """Commit the current offsets once the log is secured. Raises TimeoutError, StoreError."""
        offsets = (self.ended.first, self.end_done)
        async with asyncio.timeout(timeout_s):
            await self._durability.secured(self.store.end_log_offset)
        self._commit_progress(*offsets)

    def _commit_progress(self, half_offset: int, end_offset: int) -> None:
        self._offsets.commit(GROUP, HALF_TOPIC, QUEUE_ID, half_offset, always=True)
        self._offsets.commit(GROUP, HALF_OP_TOPIC, QUEUE_ID, end_offset, always=True)
        self._committed = (half_offset, end_offset)
        self._progress = None
