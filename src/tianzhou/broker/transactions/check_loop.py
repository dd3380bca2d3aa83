"""The check rounds: producers are asked about halves that stay open; old ones are given up.

A round walks over the halves that were open when it began. It is cut into short steps, so that the
event loop serves requests in between. Open halves may be old, so a thread reads the records of a
step from disk before it runs (`disk_prefetch`).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import perf_counter

import msgspec

from tianzhou.broker.storing import disk_prefetch
from tianzhou.broker.storing.disk_prefetch import QueueRange
from tianzhou.broker.tables.topics import TopicTable
from tianzhou.broker.transactions import rules
from tianzhou.broker.transactions.halves import ENDS_PER_STEP, Halves
from tianzhou.broker.transactions.rules import QUEUE_ID, Verdict
from tianzhou.errors import RecordError, StoreError
from tianzhou.message import StoredMessage
from tianzhou.names import CHECK_MAX_TOPIC, HALF_OP_TOPIC, HALF_TOPIC
from tianzhou.protocol import properties
from tianzhou.protocol.records.record import decode_record

log = logging.getLogger(__name__)

HALVES_PER_STEP = 32
_STEP_S = 0.001
"""How long one step may take."""
_PAUSE_S = 0.002
"""Between two steps, so that a long round takes a bounded share of the event loop."""
_PROGRESS_S = 1.0
_LAST_STEPS_MAX = 32

SendCheck = Callable[[StoredMessage], bool]
"""Asks a producer about a half that has just been stored again; False if none is connected."""


class CheckLoop:
    """Runs check rounds over the halves of a broker."""

    def __init__(
        self,
        halves: Halves,
        topics: TopicTable,
        send_check: SendCheck,
    ) -> None:
        self.halves = halves
        self._store = store = halves.store
        self._topics = topics
        self._send_check = send_check
        self._position = self._stop = halves.ended.first
        """Queue offsets of this round: the next half, and the first that it leaves out."""
        self._unsent_count = self._given_up_count = 0
        self._wake = asyncio.Event()
        is_slave = halves.settings.config.is_slave  # whose topics come from the master
        if store.max_offset(CHECK_MAX_TOPIC, QUEUE_ID) and not is_slave:
            # A crash may have come after the topic's first message and before the topic was saved.
            topics.create_for_group(CHECK_MAX_TOPIC, 1)

    # -- rounds ------------------------------------------------------------------------------------

    def begin_round(self) -> None:
        """The next steps process the halves that are open now."""
        self.halves.begin_round()
        self._position = self.halves.ended.first
        self._stop = self._store.max_offset(HALF_TOPIC, QUEUE_ID)
        self._unsent_count = self._given_up_count = 0

    def step(self, count_max: int = HALVES_PER_STEP) -> bool:
        """Do a part of the round; False if the round is over."""
        return self._step(self._next_runs(count_max))

    def _step(self, runs: Sequence[range]) -> bool:
        if not self.halves.read_ends():
            return True
        try:
            self._process(runs)
        except StoreError as e:
            self.halves.log_refusal(e)
            self._position = self._stop
        self.halves.write_ends(force=True)
        # A round ends in a step of its own, so that the ends it reads can be prefetched.
        ended = self.halves.ended
        is_over = not runs and ended.next_open(self._position, self._stop) >= self._stop
        return not (is_over and self._end_round())

    def _end_round(self) -> bool:
        """False if there is more to do."""
        self.halves.ended.advance(self._store.max_offset(HALF_TOPIC, QUEUE_ID))
        if not self.halves.advance_ends():
            return False
        self.halves.note_progress()
        if self._unsent_count:
            log.warning(
                "transactions: %d halves not checked, no producer of their groups is connected",
                self._unsent_count,
            )  # fmt: skip
        if self._given_up_count:
            log.warning(
                "transactions: %d halves given up and moved to topic %s",
                self._given_up_count, CHECK_MAX_TOPIC,
            )  # fmt: skip
        return True

    def _next_runs(self, count_max: int) -> list[range]:
        """The next open halves of this round, as runs of queue offsets."""
        ended = self.halves.ended
        runs: list[range] = []
        at, left = self._position, count_max
        while left > 0:
            first = ended.next_open(at, self._stop)
            if first >= self._stop:
                break
            at = first + 1
            while at < min(self._stop, first + left) and at not in ended:
                at += 1
            runs.append(range(first, at))
            left -= at - first
        return runs

    def _process(self, runs: Sequence[range]) -> None:
        """Process these halves, or as many as the time of a step allows."""
        deadline_s = perf_counter() + _STEP_S
        for run in runs:
            self._position = max(self._position, run.start)
            while self._position < run.stop:
                self._process_some(run.stop, deadline_s)
                if perf_counter() > deadline_s:
                    return

    def _process_some(self, stop: int, deadline_s: float) -> None:
        read = self._store.read(HALF_TOPIC, QUEUE_ID, self._position, stop - self._position)
        passed = min(max(read.next_offset, self._position + 1), stop)
        for record in read.records:
            half = decode_record(record, check_crc=False)
            self._skip(self._position, half.queue_offset)
            self._process_half(half)
            self._position = half.queue_offset + 1
            if perf_counter() > deadline_s:
                return
        self._skip(self._position, passed)
        self._position = passed

    def _skip(self, start: int, stop: int) -> None:
        """Halves that cannot be read, because they are damaged or deleted, count as ended."""
        for queue_offset in range(start, stop):
            self.halves.ended.add(queue_offset)

    def _process_half(self, half: StoredMessage) -> None:
        if half.queue_offset in self.halves.ended:
            return
        age_ms = self.halves.ages.age_ms(half.born_time_ms)
        verdict = rules.judge(half, age_ms, self.halves.settings.config)
        if verdict is Verdict.GIVE_UP:
            self._give_up(half)
        elif verdict is Verdict.CHECK:
            self._check(half)

    def _check(self, half: StoredMessage) -> None:
        draft = rules.renewed(half, rules.check_count(half) + 1, self.halves.store_host)
        try:
            appended = self.halves.renew(half, draft)
        except RecordError as e:
            log.warning("transactions: half %d cannot be stored again: %s", half.queue_offset, e)
            self._give_up(half)
            return
        renewed = msgspec.structs.replace(
            half, queue_offset=appended.queue_offset, log_offset=appended.log_offset,
            store_time_ms=appended.store_time_ms, store_host=self.halves.store_host,
            properties=properties.decode(draft.properties_text),
        )  # fmt: skip
        if not self._send_check(renewed):
            self._unsent_count += 1

    def _give_up(self, half: StoredMessage) -> None:
        self._topics.create_for_group(CHECK_MAX_TOPIC, 1)
        self._store.append(rules.given_up(half, self.halves.store_host))
        self.halves.end(half.queue_offset)
        self._given_up_count += 1
        log.debug(
            "transactions: message %s of topic %s given up after %d checks",
            half.properties.get(properties.UNIQUE_KEY),
            half.properties.get(properties.REAL_TOPIC), rules.check_count(half),
        )  # fmt: skip

    # -- on the event loop -------------------------------------------------------------------------

    def clock_changed(self) -> None:
        """A clock was moved; a round may be due."""
        self._wake.set()

    async def run(self) -> None:
        """Run round after round until cancelled."""
        round_ms = self.halves.steady()
        try:
            await self._in_steps(lambda _: not self.halves.read_ends())
        except Exception:  # rounds retry, and producers must be able to end their transactions
            log.exception("transactions: not all ends of former runs can be read")
        self.halves.ends_known.set()
        while True:
            interval_ms = self.halves.settings.config.transaction_check_interval
            left_s = (round_ms + interval_ms - self.halves.steady()) / 1000
            await self._pause(max(min(left_s, _PROGRESS_S), 0.0))
            try:
                if left_s > 0:
                    self._between_rounds()
                    continue
                round_ms = self.halves.steady()
                self.begin_round()
                await self._in_steps(self._step)
            except Exception:  # a bug in one round must not end all later rounds
                log.exception("transactions: a round of checks failed")

    async def _pause(self, longest_s: float) -> None:
        try:
            async with asyncio.timeout(longest_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _in_steps(self, step: Callable[[Sequence[range]], bool]) -> None:
        """Call `step` until it returns False, with pauses and with its records prefetched."""
        is_more = True
        while is_more:
            runs = self._next_runs(HALVES_PER_STEP)
            if needed := self._needed(runs):
                await asyncio.to_thread(disk_prefetch.prefetch, self._store, needed)
            is_more = step(runs)
            if is_more:
                await asyncio.sleep(_PAUSE_S)

    def _needed(self, runs: Sequence[range]) -> list[QueueRange]:
        """The messages that the next step will read."""
        halves = self.halves
        needed = [QueueRange(HALF_TOPIC, QUEUE_ID, run) for run in runs]
        high = self._store.max_offset(HALF_OP_TOPIC, QUEUE_ID)
        ends = [(halves.end_read, high)] + ([] if runs else [(halves.end_done, halves.end_read)])
        for first, stop in ends:
            if first < stop:
                some = range(first, min(first + ENDS_PER_STEP, stop))
                needed.append(QueueRange(HALF_OP_TOPIC, QUEUE_ID, some))
        return needed

    def _between_rounds(self) -> None:
        self.halves.ages.detect_jump()
        self.halves.write_ends()
        self.halves.note_progress()

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Write and commit the rest, so that a start after a clean stop repeats nothing.

        A slave has no rest: it ran no checks, and the progress in its tables is its master's.
        """
        halves = self.halves
        if halves.settings.config.is_slave:
            return
        halves.write_ends(force=True)
        halves.ended.advance(self._store.max_offset(HALF_TOPIC, QUEUE_ID))
        for _ in range(_LAST_STEPS_MAX):
            if halves.advance_ends():
                break
        try:
            await halves.flush_progress(timeout_s)
        except (TimeoutError, StoreError) as e:
            log.warning("transactions: the progress of the last checks is not saved: %r", e)
