"""Pop consumption at work: changes are noted, what was not acknowledged in time is revived.

    a request    ->  noted in the index  ->  the table  ->  the offset that may be committed
    its time up  ->  stored in the retry topic or the dead letters  ->  on disk  ->  dropped

A message leaves the index only when its copy is on disk, so a crash repeats some and loses none.

The offset table shows how far a group is done. If it says something else than what was put there,
then somebody has set it (an administrator, a consumer that pulls, the deletion of a topic), and the
group goes on from there: what was in flight in that queue is forgotten.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from tianzhou.broker.background.crash_points import CrashPoint, no_crash_point
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.pop.apache_checkpoint_reader import CheckpointReader
from tianzhou.broker.pop.apache_checkpoints import CheckPoint
from tianzhou.broker.pop.index import PopIndex
from tianzhou.broker.pop.inflight import Change, InFlight, Key, PopTable
from tianzhou.broker.statistics.counters import Stats
from tianzhou.broker.storing import retry_dlq
from tianzhou.broker.storing.redraft import redraft
from tianzhou.broker.tables.groups import GroupTable
from tianzhou.broker.tables.offsets import NOT_FOUND, OffsetTable
from tianzhou.broker.tables.topics import TopicTable
from tianzhou.clock import Clock, Moment, anchored
from tianzhou.config.live import LiveSettings
from tianzhou.errors import RecordError, RequestError, StoreError, TianzhouError
from tianzhou.message import Host
from tianzhou.names import RETRY_TOPIC_PREFIX
from tianzhou.protocol import properties
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.derived import is_topic_name
from tianzhou.protocol.pure.record import RecordFields
from tianzhou.protocol.records import receipts
from tianzhou.protocol.records.message_id import encode_offset_id
from tianzhou.store.consume_queue import BLANK_SIZE
from tianzhou.store.message_store import Draft, MessageStore

log = logging.getLogger(__name__)

_REVIVED_A_TURN = 256
_PLACES_A_TURN = 256
_FREE_SHARE = 8
"""After it was full, popping goes on when so large a part is free again."""
_LOOK_S = 1.0
_KEEP_S = 5.0
_LATER_MS = 60_000
"""A message that cannot be stored anew is tried again after this."""


class Pops:
    """What groups have popped on one broker."""

    def __init__(
        self,
        settings: LiveSettings[BrokerConfig],
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        stats: Stats,
        clock: Clock,
        steady: Clock,
        store_host: Host,
        topics_saved: Callable[[], Awaitable[bool]],
        on_visible: Callable[[str], None],
        step: CrashPoint = no_crash_point,
        timed_until_ms: Callable[[], int] | None = None,
        on_space: Callable[[], None] = lambda: None,
    ) -> None:
        """Takes over what a former run noted. Raises StoreError.

        `on_visible` is told a topic in which a group may find something now; `timed_until_ms`
        tells until when all timed messages are delivered that were due; `on_space` is told when
        groups may pop again after too many messages were in flight.
        """
        self._settings = settings
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._stats = stats
        self._clock = clock
        self._steady = steady
        self._anchored = anchored(clock, steady)
        self._store_host = store_host
        self._topics_saved = topics_saved
        self._on_visible = on_visible
        self._step = step
        self._wake = asyncio.Event()
        self._planned_ms: int | None = None
        self._revived: list[tuple[Key, InFlight]] = []
        """Stored anew, but maybe not on disk yet."""
        self._made_topic = False
        self._failing = False
        self._unkept = False
        self._expired_count = 0
        self._on_space = on_space
        self.is_full = False
        """Whether so many messages are in flight that no more can be popped."""
        self.table = PopTable()
        cluster = settings.config.broker_cluster_name
        self._notes = CheckpointReader(store, offsets, cluster, timed_until_ms or clock)
        path = settings.config.root_directory / "pop" / "inflight.sqlite"
        self._index = PopIndex.open(path)
        try:
            self._take_over()
        except sqlite3.Error as e:
            self._index.close()
            raise StoreError(f"the pop index {path} cannot be written: {e}") from e

    def _take_over(self) -> None:
        found = self._index.found()
        checked = [self._checked(change) for change in found]
        self._index.write(
            new._replace(clear=True) for old, new in zip(found, checked, strict=True) if old != new
        )
        at = self._now()
        for change in checked:
            self.table.apply(change, at)
            self._commit(change.key)
        self._update_full()

    def _now(self) -> Moment:
        return Moment(self._clock(), self._steady())

    def _checked(self, found: Change) -> Change:
        """What the index says, as far as the log and the offset table bear it out.

        A power cut may leave any of the three older than the others, and another broker may have
        had the store. What lies before the committed offset is done with, wherever that is known.
        """
        group, topic, queue_id = found.key
        end = self._store.max_offset(topic, queue_id)
        done = min(self._offsets.find(group, topic, queue_id), end)
        next_offset = max(min(found.next_offset, end), done)
        rows = tuple(row for row in found.put if done <= row.queue_offset < end)
        batch = found.batch if next_offset == found.next_offset else None
        return Change(found.key, next_offset, put=rows, batch=batch)

    # -- what requests do --------------------------------------------------------------------------

    def next_offset(self, key: Key) -> int | None:
        """Where a group pops next in a queue; None if it never popped there. Raises RequestError.

        The offset table has the first word.
        """
        was_reset = self._offsets.take_reset(*key) is not None
        committed = self.table.committed(key)
        seen = self._offsets.find(*key)
        if committed is None:
            return None if seen == NOT_FOUND else seen
        if was_reset or seen != committed:
            if seen == NOT_FOUND:
                self.apply([Change(key, 0, gone=True)])
                return None
            log.info(
                "group %s: goes on at %d in topic %s queue %d, as the offset table says",
                key.group, seen, key.topic, key.queue_id,
            )  # fmt: skip
            self.apply([Change(key, seen, clear=True)])
        return self.table.next_offset(key)

    def apply(self, changes: Iterable[Change]) -> None:
        """Have changes count. Raises RequestError; then nothing has changed."""
        changes = list(changes)
        self._step("pop: before it is noted")
        try:
            self._index.write(changes)
        except sqlite3.Error as e:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"the broker cannot note what is popped: {e}"
            ) from e
        self._step("pop: it is noted")
        at = self._now()
        for change in changes:
            self.table.apply(change, at)
            if not change.gone:
                self._commit(change.key)
        self._update_full()
        self._unkept = True
        next_ms = self.table.next_due_ms()
        if next_ms is not None and (self._planned_ms is None or next_ms < self._planned_ms):
            self._wake.set()

    def _update_full(self) -> None:
        count, count_max = self.table.in_flight_count, self._settings.config.pop_ck_max_buffer_size
        if count >= count_max:
            if not self.is_full:
                log.warning(
                    "popped messages: %d are in flight (popCkMaxBufferSize), no more are handed "
                    "out before some are acknowledged or their time is up", count,
                )  # fmt: skip
            self.is_full = True
        elif self.is_full and count <= count_max - count_max // _FREE_SHARE:
            # Not with every single one, or everybody who waits would be tried for each.
            self.is_full = False
            self._on_space()

    def _commit(self, key: Key) -> None:
        committed = self.table.committed(key)
        if committed is not None:
            self._offsets.commit(*key, committed, always=True)

    # -- running -----------------------------------------------------------------------------------

    def clock_changed(self) -> None:
        """The clock has jumped."""
        self._wake.set()

    async def run(self) -> None:
        """Revive what is due and keep the index in shape, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_reviving())
            tasks.create_task(self._keep_index())

    async def _keep_reviving(self) -> None:
        while True:
            self._wake.clear()
            try:
                is_more = await self._turn(self._steady())
                self._failing = False
            except Exception as e:
                # A bug must not end all turns to come; a full disk is over some time.
                if not self._failing:
                    known = isinstance(e, TianzhouError | OSError)
                    log.error("popped messages: trying again: %s", e, exc_info=not known)  # noqa: TRY400 - see known
                self._failing, is_more = True, False
            if is_more:
                await asyncio.sleep(0)
            else:
                await self._wait()

    async def _wait(self) -> None:
        self._planned_ms = next_ms = self.table.next_due_ms()
        wait_s = _LOOK_S
        if next_ms is not None and not self._failing:
            wait_s = min(max(next_ms - self._steady(), 0) / 1000, _LOOK_S)
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._planned_ms = None

    async def _turn(self, now_ms: int) -> bool:
        """Revive some of what is due; whether there may be more. Raises TianzhouError."""
        is_more = self._look_at_notes()
        for key in self.table.take_freed(now_ms):
            self._on_visible(key.topic)
        due = self.table.take_due(now_ms, _REVIVED_A_TURN)
        if not due:
            return is_more
        failure: StoreError | None = None
        for at, (key, row) in enumerate(due):
            try:
                if not self._revive(key, row):
                    continue
            except StoreError as e:
                self.table.requeue(due[at:])
                failure = e
                break
            self._revived.append((key, row))
        if self._expired_count:
            log.warning(
                "popped messages: %d were not acknowledged and cannot be delivered again, the log "
                "does not have them any more", self._expired_count,
            )  # fmt: skip
            self._expired_count = 0
        await self._settle()
        if failure is not None:
            raise failure
        return True

    # -- what RocketMQ left ------------------------------------------------------------------------

    def _look_at_notes(self) -> bool:
        """Take over what was popped from RocketMQ and not acknowledged; whether there is more."""
        points, is_more = self._notes.look(self._anchored())
        try:
            for point in points:
                self._adopt(point)
        except RequestError:
            self._notes.start_over()
            raise
        self._notes.commit()
        return is_more

    def _adopt(self, point: CheckPoint) -> None:
        """Have messages in flight that RocketMQ handed out; they are due already."""
        key = point.popped.key
        next_offset = self.next_offset(key)
        if next_offset is None:
            next_offset = max(point.queue_offsets, default=-1) + 1
        known = {row.queue_offset for row in self.table.in_flight(key)}
        # What lies before the group's place was handed out; the rest will be popped anyway.
        rows = [
            row
            for row in point.rows()
            if row.queue_offset < next_offset and row.queue_offset not in known
        ]
        if rows:
            self.apply([Change(key, next_offset, put=tuple(rows))])

    async def _settle(self) -> None:
        """Drop what was revived, once its copies are on disk. Raises TianzhouError."""
        if not self._revived:
            return
        for topic in {receipts.origin_topic(key.group, key.topic) for key, _ in self._revived}:
            self._on_visible(topic)
        end = self._store.end_log_offset
        try:
            if self._made_topic:
                # Without its topic a message could not be popped after a crash.
                self._made_topic = not await self._topics_saved()
            if self._made_topic:
                raise StoreError("a retry topic cannot be saved")
            await asyncio.wrap_future(self._store.flushed(end))
            self._step("pop: the revived are on disk")
            self.apply(self.table.dropped(self._revived))
        except TianzhouError:
            self.table.requeue(self._revived)
            self._revived = []
            raise
        self._revived = []

    def _revive(self, key: Key, row: InFlight) -> bool:
        """Store a message anew; False if it cannot be and is tried again. Raises StoreError."""
        fields = self._message(key, row.queue_offset)
        if fields is None:
            self._expired_count += 1
            return True
        group = self._groups.get(key.group) or SubscriptionGroupConfig(group_name=key.group)
        config = self._settings.config
        origin = receipts.origin_topic(key.group, key.topic)
        topic = key.topic
        if not topic.startswith(RETRY_TOPIC_PREFIX):
            topic = receipts.retry_topic(key.group, topic, v2=config.enable_retry_topic_v2)
        # RocketMQ may have let a group pop whose retry topic no folder can be named after.
        dead = retry_dlq.fate(group, fields[12], group.retry_max_times, 0).dead or (
            not is_topic_name(topic)
        )
        if dead:
            draft = dead_letter(fields, key.group, origin, self._store_host)
        else:
            draft = revived(fields, topic, row, self._store_host)
        if self._topics.get(draft.topic) is None and is_topic_name(draft.topic):
            self._topics.create_for_group(draft.topic, 1)
            self._made_topic = True
        self._step("pop: before it is revived")
        if not self._append(draft, fields, key, row):
            return False
        self._step("pop: it is revived")
        self._stats.sent_back[origin, key.group] += 1
        if dead:
            self._stats.dead[origin, key.group] += 1
        return True

    def _append(self, draft: Draft, fields: RecordFields, key: Key, row: InFlight) -> bool:
        try:
            self._store.append(draft)
        except RecordError:
            # Properties that leave no room for more: as they were they have one.
            plain = msgspec.structs.replace(draft, properties_text=properties.encode(fields[2]))
            try:
                self._store.append(plain)
            except RecordError as e:
                log.warning(
                    "group %s: message %d of topic %s queue %d cannot be stored anew: %s",
                    key.group, row.queue_offset, key.topic, key.queue_id, e,
                )  # fmt: skip
                later = self.table.prolonged(key, row, self._now(), _LATER_MS)
                self.apply([] if later is None else [later])
                return False
        return True

    def _message(self, key: Key, queue_offset: int) -> RecordFields | None:
        queue = self._store.queues.get(key.topic, key.queue_id)
        entry = None if queue is None else queue.entry(queue_offset)
        if entry is None or entry[1] == BLANK_SIZE:
            return None
        fields = self._store.log.decode(entry[0], read_body=True)
        if fields is None or (fields[0], fields[3], fields[4]) != (*key[1:], queue_offset):
            return None
        return fields

    async def _keep_index(self) -> None:
        while True:
            await asyncio.sleep(_KEEP_S)
            try:
                for at, key in enumerate(self.table.keys()):
                    self.next_offset(key)
                    if at % _PLACES_A_TURN == 0:
                        await asyncio.sleep(0)
                if self._unkept:
                    self._unkept = False
                    await asyncio.to_thread(self._index.checkpoint)
                    self._index.shorten_log()
            except (sqlite3.Error, TianzhouError) as e:
                self._unkept = True
                log.warning("pop index: not saved: %s", e)

    async def stop(self) -> None:
        """Nothing is revived from here on; what was, is not revived again by the next run."""
        try:
            await self._settle()
        except TianzhouError as e:
            log.warning("popped messages: some may be revived twice: %s", e)
        try:
            await asyncio.to_thread(self._index.checkpoint)
        except sqlite3.Error as e:
            log.warning("pop index: not closed in good order: %s", e)
        self._index.close()


def revived(fields: RecordFields, topic: str, row: InFlight, store_host: Host) -> Draft:
    """A message that was not acknowledged in time, for the group's retry topic."""
    found = dict(fields[2])
    found.pop(properties.POP_CK, None)
    found.setdefault(properties.FIRST_POP_TIME, str(row.pop_time_ms))
    found.setdefault(properties.ORIGIN_MESSAGE_ID, encode_offset_id(fields[11], fields[5]))
    draft = redraft(fields, topic, 0, found)
    return msgspec.structs.replace(
        draft, store_host=store_host, reconsume_count=draft.reconsume_count + 1
    )


def dead_letter(fields: RecordFields, group: str, origin: str, store_host: Host) -> Draft:
    """A message that was not acknowledged too often."""
    found = {properties.RETRY_TOPIC: origin} | fields[2]
    named: RecordFields = (fields[0], fields[1], found, *fields[3:])
    return retry_dlq.sent_back(named, group, retry_dlq.Fate(dead=True), 1, store_host, {})[0]
