"""The halves of transactions as the store has them: ending them, checking those that stay open.

A check round walks over the open halves that were there when it began. Its work is cut into small
steps, between which everything else goes on; what a step will look at is fetched from the disk by a
thread before (`cold.py`), for open halves may be old.

What the broker must remember is on disk in RocketMQ's form: ends are messages, and how far all
halves are settled is kept as consumer offsets of the group CID_RMQ_SYS_TRANS, for the halves and
for the ends. Offsets are committed only once the log is on disk up to where it was when they were
true, so that after a power cut no half is taken for settled whose copy was lost.

After a crash a half that was being checked may be checked twice, and a message whose end was not
written any more may be committed twice: consumers may get it again, never not at all.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

import msgspec

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.storing import disk_prefetch
from tianzhou.broker.storing.disk_prefetch import Stretch
from tianzhou.broker.storing.redirects import Intake
from tianzhou.broker.tables.clients import ProducerTable
from tianzhou.broker.tables.offsets import NOT_FOUND, OffsetTable
from tianzhou.broker.tables.topics import TopicTable
from tianzhou.broker.transactions import rules as transactions
from tianzhou.broker.transactions.rules import GROUP, QUEUE_ID, Rules, SettledHalves, Verdict
from tianzhou.clock import Ages, Clock
from tianzhou.config.live import LiveSettings
from tianzhou.errors import RecordError, RemotingError, RequestError, StoreError
from tianzhou.message import Host, StoredMessage
from tianzhou.names import CHECK_MAX_TOPIC, HALF_OP_TOPIC, HALF_TOPIC
from tianzhou.protocol import properties
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import encode
from tianzhou.protocol.headers.send import CheckTransactionStateRequest
from tianzhou.protocol.records.message_id import encode_offset_id
from tianzhou.protocol.records.record import decode_record, encode_stored
from tianzhou.remoting.connection import Connection
from tianzhou.store.message_store import Appended, Draft, MessageStore

log = logging.getLogger(__name__)

HALVES_A_STEP = 32
_ENDS_A_STEP = 256
_READ_COUNT = 32
_STEP_S = 0.001
"""How long the walk of one step should take at most."""
_PAUSE_S = 0.002
"""Between two steps, so that a long round takes no more than its share of the event loop."""
_PROGRESS_S = 1.0
_LAST_PASSES = 32
_PRODUCERS_TRIED = 3
_RENEWALS_MAX = 50_000
_HOUR_MS = 3_600_000

Ask = Callable[[StoredMessage], bool]
"""Asks a producer about a half that has just been stored again; False if there is none to ask."""


class _Progress(NamedTuple):
    half_offset: int
    end_offset: int
    log_offset: int
    """Once the log is on disk up to here, the two count."""


class Halves:
    """All halves of a broker."""

    def __init__(
        self,
        settings: LiveSettings[BrokerConfig],
        store: MessageStore,
        intake: Intake,
        topics: TopicTable,
        offsets: OffsetTable,
        clock: Clock,
        steady: Clock,
        store_host: Host,
        ask: Ask,
    ) -> None:
        self._settings = settings
        self._store = store
        self._intake = intake
        self._topics = topics
        self._offsets = offsets
        self._clock = clock
        self._steady = steady
        self.ages = Ages(clock, steady)
        self._store_host = store_host
        self._ask = ask
        self.settled = SettledHalves(self._start_of(HALF_TOPIC))
        self._end_done = self._end_read = self._start_of(HALF_OP_TOPIC)
        self._committed = (self.settled.first, self._end_done)
        self._progress: _Progress | None = None
        self._at = self._stop = self.settled.first
        self._renewals: dict[int, int] = {}
        self._unwritten: list[int] = []
        self._unwritten_since_ms = 0
        self._unasked_count = self._given_up_count = 0
        self._refused = False
        self._ends_known = asyncio.Event()
        self._sooner = asyncio.Event()
        if store.max_offset(CHECK_MAX_TOPIC, QUEUE_ID):
            # A crash may have come between the first message of the topic and its entry's saving.
            topics.create_for_group(CHECK_MAX_TOPIC, 1)

    def _start_of(self, topic: str) -> int:
        """The committed offset, within what the store has: a log that lost its end is shorter."""
        found = self._offsets.find(GROUP, topic, QUEUE_ID)
        low = self._store.min_offset(topic, QUEUE_ID)
        high = self._store.max_offset(topic, QUEUE_ID)
        return low if found == NOT_FOUND else min(max(found, low), high)

    # -- storing and ending ------------------------------------------------------------------------

    def redirect(self, draft: Draft, found: dict[str, str]) -> Draft | None:
        """For the intake: transactional messages become halves. Raises RequestError."""
        if not transactions.is_half(draft, found):
            return None
        if self._settings.config.reject_transaction_message:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                "this broker takes no transactional messages (rejectTransactionMessage)",
            )
        return transactions.as_half(draft, found)

    def open_count(self) -> int:
        """How many halves nobody has ended yet."""
        return self.settled.open_count(self._store.max_offset(HALF_TOPIC, QUEUE_ID))

    def find(self, log_offset: int) -> StoredMessage | None:
        """The half that begins at a place of the log."""
        found = self._message_at(log_offset)
        return found if found is not None and found.topic == HALF_TOPIC else None

    def _message_at(self, log_offset: int) -> StoredMessage | None:
        fields = self._store.log.decode(log_offset, read_body=True)
        return None if fields is None else StoredMessage(*fields)

    def commit(self, half: StoredMessage) -> Appended | None:
        """Deliver the message of a half and end it; None if that half was ended before.

        Raises RequestError, StoreError, RecordError; then the half is open as before.
        """
        queue_offset = self._newest(half.queue_offset)
        if queue_offset in self.settled:
            return None
        place = transactions.real_place(half)
        if place is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the half names no topic and queue")
        appended = self._intake.append(transactions.committed(half, *place, self._store_host))
        self._settle(queue_offset)
        return appended

    def roll_back(self, half: StoredMessage) -> bool:
        """End a half without delivering it; False if it was ended before. Raises StoreError."""
        queue_offset = self._newest(half.queue_offset)
        if queue_offset in self.settled:
            return False
        if self._store.refusal is not None:
            raise self._store.refusal
        self._settle(queue_offset)
        return True

    def resume(self, log_offset: int) -> StoredMessage | None:
        """Check a half again that was given up; None if none lies there. Raises StoreError."""
        found = self._message_at(log_offset)
        if found is None or found.topic not in (CHECK_MAX_TOPIC, HALF_TOPIC):
            return None
        self._store.append(transactions.renewed(found, 0, self._store_host))
        return found

    def _newest(self, queue_offset: int) -> int:
        """Where a half is now that its producer knows by a place from before its checks.

        Only the latest places are remembered. Who ends a half by an older one, or by one from
        before a restart, ends nothing that is open, and is asked again. RocketMQ would deliver the
        message at once, ask all the same, and deliver it a second time.
        """
        while (again := self._renewals.get(queue_offset)) is not None:
            queue_offset = again
        return queue_offset

    def _settle(self, queue_offset: int) -> None:
        if self.settled.add(queue_offset):
            if not self._unwritten:
                self._unwritten_since_ms = self._steady()
            self._unwritten.append(queue_offset)

    # -- writing ends ------------------------------------------------------------------------------

    @property
    def has_unwritten_ends(self) -> bool:
        return bool(self._unwritten)

    def write_ends(self, *, all_of_them: bool = False) -> None:
        """Write the ends that wait, unless the settings let them wait for more."""
        config, now_ms = self._settings.config, self._steady()
        waited_ms = now_ms - self._unwritten_since_ms
        is_due = waited_ms >= config.transaction_op_batch_interval
        # Eight bytes are a queue offset of a store of some age with its comma.
        is_enough = len(self._unwritten) * 8 >= config.transaction_op_msg_max_size
        if not self._unwritten or not (all_of_them or is_due or is_enough):
            return
        drafts = transactions.end_drafts(
            self._unwritten, config.transaction_op_msg_max_size, self._clock(), self._store_host
        )
        written_count = 0
        try:
            for draft, count in drafts:
                appended = self._store.append(draft)
                written_count += count
                if appended.queue_offset == self._end_read:
                    # What this process writes it knows already.
                    self._end_read += 1
        except StoreError as e:
            self._complain(e)
        del self._unwritten[:written_count]
        self._unwritten_since_ms = now_ms

    def _complain(self, error: StoreError) -> None:
        if not self._refused:
            log.warning("transactions: nothing can be stored, checks have to wait: %s", error)
        self._refused = True

    # -- rounds ------------------------------------------------------------------------------------

    def begin_round(self) -> None:
        """The next steps look at the halves that are there now."""
        self.settled.drop_before(self._store.min_offset(HALF_TOPIC, QUEUE_ID))
        self._at = self.settled.first
        self._stop = self._store.max_offset(HALF_TOPIC, QUEUE_ID)
        self._unasked_count = self._given_up_count = 0
        self._refused = False

    def step(self, count_max: int = HALVES_A_STEP) -> bool:
        """Do a part of the round; False if it is done."""
        return self._step(self._next_runs(count_max))

    def _step(self, runs: Sequence[range]) -> bool:
        if not self._read_ends():
            return True
        try:
            self._walk(runs)
        except StoreError as e:
            self._complain(e)
            self._at = self._stop
        self.write_ends(all_of_them=True)
        # A round ends in a step of its own, so that what that looks at can be fetched before it.
        is_over = not runs and self.settled.next_open(self._at, self._stop) >= self._stop
        return not (is_over and self._end_round())

    def _end_round(self) -> bool:
        """False if there is more to do."""
        self.settled.advance(self._store.max_offset(HALF_TOPIC, QUEUE_ID))
        if not self._pass_ends():
            return False
        self.note_progress()
        if self._unasked_count:
            log.warning(
                "transactions: %d halves could not be checked, no producer of their groups is here",
                self._unasked_count,
            )  # fmt: skip
        if self._given_up_count:
            log.warning(
                "transactions: %d halves are given up and moved to topic %s",
                self._given_up_count, CHECK_MAX_TOPIC,
            )  # fmt: skip
        return True

    def _next_runs(self, count_max: int) -> list[range]:
        """The open halves that come next in this round, as runs of queue offsets."""
        runs: list[range] = []
        at, left = self._at, count_max
        while left > 0:
            first = self.settled.next_open(at, self._stop)
            if first >= self._stop:
                break
            at = first + 1
            while at < min(self._stop, first + left) and at not in self.settled:
                at += 1
            runs.append(range(first, at))
            left -= at - first
        return runs

    def _walk(self, runs: Sequence[range]) -> None:
        """Look at these halves, or at as many as there is time for."""
        rules, ends_s = self._rules(), perf_counter() + _STEP_S
        for run in runs:
            self._at = max(self._at, run.start)
            while self._at < run.stop:
                self._walk_some(run.stop, rules, ends_s)
                if perf_counter() > ends_s:
                    return

    def _walk_some(self, stop: int, rules: Rules, ends_s: float) -> None:
        read = self._store.read(HALF_TOPIC, QUEUE_ID, self._at, stop - self._at)
        passed = min(max(read.next_offset, self._at + 1), stop)
        for record in read.records:
            half = decode_record(record, check_crc=False)
            self._skip(self._at, half.queue_offset)
            self._consider(half, rules)
            self._at = half.queue_offset + 1
            if perf_counter() > ends_s:
                return
        self._skip(self._at, passed)
        self._at = passed

    def _skip(self, start: int, stop: int) -> None:
        """Halves that cannot be read, because they are damaged or gone, are not waited for."""
        for queue_offset in range(start, stop):
            self.settled.add(queue_offset)

    def _rules(self) -> Rules:
        config = self._settings.config
        return Rules(
            config.transaction_time_out,
            config.transaction_check_max,
            config.file_reserved_time * _HOUR_MS,
        )

    def _consider(self, half: StoredMessage, rules: Rules) -> None:
        if half.queue_offset in self.settled:
            return
        match transactions.judge(half, self.ages.age_ms(half.born_time_ms), rules):
            case Verdict.WAIT:
                pass
            case Verdict.GIVE_UP:
                self._give_up(half)
            case Verdict.CHECK:
                self._check(half)

    def _check(self, half: StoredMessage) -> None:
        count = transactions.check_count(half) + 1
        draft = transactions.renewed(half, count, self._store_host)
        try:
            appended = self._store.append(draft)
        except RecordError as e:
            log.warning("transactions: half %d cannot be stored again: %s", half.queue_offset, e)
            self._give_up(half)
            return
        self._settle(half.queue_offset)
        self._renewals[half.queue_offset] = appended.queue_offset
        if len(self._renewals) > _RENEWALS_MAX:
            del self._renewals[next(iter(self._renewals))]
        again = msgspec.structs.replace(
            half, queue_offset=appended.queue_offset, log_offset=appended.log_offset,
            store_time_ms=appended.store_time_ms, store_host=self._store_host,
            properties=properties.decode(draft.properties_text),
        )  # fmt: skip
        if not self._ask(again):
            self._unasked_count += 1

    def _give_up(self, half: StoredMessage) -> None:
        self._topics.create_for_group(CHECK_MAX_TOPIC, 1)
        self._store.append(transactions.given_up(half, self._store_host))
        self._settle(half.queue_offset)
        self._given_up_count += 1
        log.debug(
            "transactions: message %s of topic %s is given up after %d checks",
            half.properties.get(properties.UNIQUE_KEY),
            half.properties.get(properties.REAL_TOPIC), transactions.check_count(half),
        )  # fmt: skip

    # -- reading ends ------------------------------------------------------------------------------

    @property
    def knows_ends(self) -> bool:
        """Whether all ends are read that former runs wrote; before, an ended half may look open."""
        return self._ends_known.is_set()

    async def ends_known(self) -> None:
        await self._ends_known.wait()

    def _read_ends(self) -> bool:
        """Read some of the ends that another run of a broker has written; True if that was all."""
        half_end = self._store.max_offset(HALF_TOPIC, QUEUE_ID)
        for _ in range(_ENDS_A_STEP // _READ_COUNT):
            high = self._store.max_offset(HALF_OP_TOPIC, QUEUE_ID)
            if self._end_read >= high:
                return True
            read = self._store.read(HALF_OP_TOPIC, QUEUE_ID, self._end_read, _READ_COUNT)
            for record in read.records:
                for queue_offset in transactions.ended_by(decode_record(record, check_crc=False)):
                    # An offset that no half has would make room for all halves up to it.
                    if queue_offset < half_end:
                        self.settled.add(queue_offset)
            self._end_read = min(max(read.next_offset, self._end_read + 1), high)
        return False

    def _pass_ends(self) -> bool:
        """Leave behind some of the ends of halves that all lie before the first open one.

        False if there may be more of them.
        """
        for _ in range(_ENDS_A_STEP // _READ_COUNT):
            if self._end_done >= self._end_read:
                return True
            read = self._store.read(HALF_OP_TOPIC, QUEUE_ID, self._end_done, _READ_COUNT)
            for record in read.records:
                end = decode_record(record, check_crc=False)
                if any(each >= self.settled.first for each in transactions.ended_by(end)):
                    self._end_done = max(self._end_done, end.queue_offset)
                    return True
            self._end_done = min(max(read.next_offset, self._end_done + 1), self._end_read)
        return False

    # -- progress ----------------------------------------------------------------------------------

    def note_progress(self) -> None:
        """Commit offsets that are safe to be known, and remember newer ones for the next time."""
        waiting = self._progress
        if waiting is not None:
            if self._store.flushed_log_offset < waiting.log_offset:
                return
            self._commit(waiting)
        place = (self.settled.first, self._end_done)
        if place != self._committed:
            self._progress = _Progress(*place, self._store.end_log_offset)

    def _commit(self, progress: _Progress) -> None:
        self._offsets.commit(GROUP, HALF_TOPIC, QUEUE_ID, progress.half_offset, always=True)
        self._offsets.commit(GROUP, HALF_OP_TOPIC, QUEUE_ID, progress.end_offset, always=True)
        self._committed = (progress.half_offset, progress.end_offset)
        self._progress = None

    # -- on the event loop -------------------------------------------------------------------------

    def look_now(self) -> None:
        """A clock was moved; a round may be due."""
        self._sooner.set()

    async def run(self) -> None:
        """Round after round, until cancelled."""
        round_ms = self._steady()
        try:
            await self._in_steps(lambda _: not self._read_ends())
        except Exception:  # rounds try again, and producers must be able to end what they began
            log.exception("transactions: the ends of former runs cannot all be read")
        self._ends_known.set()
        while True:
            interval_ms = self._settings.config.transaction_check_interval
            left_s = (round_ms + interval_ms - self._steady()) / 1000
            await self._pause(max(min(left_s, _PROGRESS_S), 0.0))
            try:
                if left_s > 0:
                    self._between_rounds()
                    continue
                round_ms = self._steady()
                self.begin_round()
                await self._in_steps(self._step)
            except Exception:  # a bug in one round must not end all rounds to come
                log.exception("transactions: a round of checks failed")

    async def _pause(self, longest_s: float) -> None:
        try:
            async with asyncio.timeout(longest_s):
                await self._sooner.wait()
        except TimeoutError:
            pass
        self._sooner.clear()

    async def _in_steps(self, step: Callable[[Sequence[range]], bool]) -> None:
        """Call it until it says that there is no more to do, with everything else in between."""
        goes_on = True
        while goes_on:
            runs = self._next_runs(HALVES_A_STEP)
            if needed := self._needed(runs):
                await asyncio.to_thread(disk_prefetch.warm, self._store, needed)
            goes_on = step(runs)
            if goes_on:
                await asyncio.sleep(_PAUSE_S)

    def _needed(self, runs: Sequence[range]) -> list[Stretch]:
        """What the next step will look at."""
        needed = [Stretch(HALF_TOPIC, QUEUE_ID, run) for run in runs]
        high = self._store.max_offset(HALF_OP_TOPIC, QUEUE_ID)
        ends = [(self._end_read, high)] + ([] if runs else [(self._end_done, self._end_read)])
        for first, stop in ends:
            if first < stop:
                some = range(first, min(first + _ENDS_A_STEP, stop))
                needed.append(Stretch(HALF_OP_TOPIC, QUEUE_ID, some))
        return needed

    def _between_rounds(self) -> None:
        self.ages.look()
        self.write_ends()
        self.note_progress()

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Write and commit what is left, so that a clean stop repeats nothing."""
        self.write_ends(all_of_them=True)
        self.settled.advance(self._store.max_offset(HALF_TOPIC, QUEUE_ID))
        for _ in range(_LAST_PASSES):
            if self._pass_ends():
                break
        log_offset = self._store.end_log_offset
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.wrap_future(self._store.flushed(log_offset))
        except (TimeoutError, StoreError) as e:
            log.warning("transactions: the last progress of checks is not kept: %r", e)
            return
        self._commit(_Progress(self.settled.first, self._end_done, log_offset))


# -- asking producers ------------------------------------------------------------------------------


MayAsk = Callable[[Connection, str | None, str], bool]
"""Whether the account of a connection may write a topic, and so be sent a half of it."""


class CheckSender:
    """Asks any producer of the group that may write the topic how its transaction went."""

    def __init__(
        self,
        producers: ProducerTable[Connection],
        broker_name: str,
        store_host: Host,
        may_ask: MayAsk,
    ) -> None:
        self._producers = producers
        self._may_ask = may_ask
        self._broker_name = broker_name
        self._store_host = store_host

    def __call__(self, half: StoredMessage) -> bool:
        group = half.properties.get(properties.PRODUCER_GROUP, "")
        place = transactions.real_place(half)
        if place is None:
            return False
        # A heartbeat can name any producer group, and the half goes out with its body.
        members = [
            connection
            for connection, client in self._producers.groups.get(group, {}).items()
            if self._may_ask(connection, client.account, place[0])
        ]
        for connection in random.sample(members, min(len(members), _PRODUCERS_TRIED)):
            try:
                connection.oneway(self._command(half, *place))
            except RemotingError as e:
                log.debug("producer group %s: %s cannot be asked: %s", group, connection.peer, e)
            else:
                return True
        return False

    def _command(self, half: StoredMessage, topic: str, queue_id: int) -> Command:
        unique = half.properties.get(properties.UNIQUE_KEY)
        header = CheckTransactionStateRequest(
            target_broker=self._broker_name,
            topic=half.topic,
            queue_offset=half.queue_offset,
            log_offset=half.log_offset,
            msg_id=unique,
            transaction_id=unique,
            offset_msg_id=encode_offset_id(self._store_host, half.log_offset),
        )
        shown = msgspec.structs.replace(half, topic=topic, queue_id=queue_id)
        return Command(
            code=RequestCode.CHECK_TRANSACTION_STATE,
            ext_fields=encode(header),
            body=encode_stored(shown),
        )
