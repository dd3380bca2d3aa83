"""Applies the changes of pop requests, and revives messages that were not acknowledged in time.

    a request      ->  written to the index  ->  the table  ->  the committed offset
    a time is up   ->  stored in the retry topic or the dead-letter queue  ->  secured  ->  dropped

A message leaves the index only when its copy is on disk, and with SYNC_MASTER on slaves
(`durability`), so a crash redelivers some and loses none.

The offset table contains the committed offset of a group. If it differs from what was committed
here, it was set from outside (by an administrator, a consumer that pulls, the deletion of a topic),
and the group continues from there: the messages in flight in that queue are dropped.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from tianzhou.broker.background.crash_points import CrashPoint, no_crash_point
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.pop.apache_checkpoints import Checkpoint, CheckpointReader
from tianzhou.broker.pop.index import PopIndex
from tianzhou.broker.pop.inflight import Change, InFlight, Key, PopTable
from tianzhou.broker.statistics.counters import Stats
from tianzhou.broker.storing import retry_dlq
from tianzhou.broker.storing.durability import Durability
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

_REVIVED_PER_SLICE = 256
_CHECKED_PER_SLICE = 256
_FREE_SHARE = 8
"""After the limit was reached, pops continue when one part of so many is free again."""
_IDLE_S = 1.0
_MAINTENANCE_S = 5.0
_RETRY_MS = 60_000
"""A message that cannot be stored again is retried after this."""


class Pops:
    """The pop consumption of one broker."""

    def __init__(
        self,
        settings: LiveSettings[BrokerConfig],
        store: MessageStore,
        durability: Durability,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        stats: Stats,
        clock: Clock,
        steady: Clock,
        store_host: Host,
        topics_saved: Callable[[], Awaitable[bool]],
        on_visible: Callable[[str], None],
        crash_point: CrashPoint = no_crash_point,
        timed_until_ms: Callable[[], int] | None = None,
        on_space: Callable[[], None] = lambda: None,
    ) -> None:
        """Loads the index of a former run. Raises StoreError.

        `on_visible` is called with a topic that has messages for a waiting pop; `timed_until_ms`
        returns the time before which every due timed message is delivered; `on_space` is called
        when groups may pop again after too many messages were in flight.
        """
        self._settings = settings
        self._store = store
        self._durability = durability
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
        self._crash_point = crash_point
        self._wake = asyncio.Event()
        self._planned_ms: int | None = None
        self._revived: list[tuple[Key, InFlight]] = []
        """Stored again, but maybe not secured yet."""
        self._created_topic = False
        self._failing = False
        self._is_dirty = False
        self._expired_count = 0
        self._on_space = on_space
        self.is_full = False
        """Whether the limit of messages in flight is reached, so that no more can be popped."""
        self.table = PopTable()
        cluster = settings.config.broker_cluster_name
        self._checkpoints = CheckpointReader(store, offsets, cluster, timed_until_ms or clock)
        path = settings.config.root_directory / "pop" / "inflight.sqlite"
        self._index = PopIndex.open(path)
        try:
            self._load()
        except sqlite3.Error as e:
            self._index.close()
            raise StoreError(f"the pop index {path} cannot be written: {e}") from e

    def _load(self) -> None:
        loaded = self._index.loaded()
        if self._settings.config.is_slave:
            # The index is not replicated, and its offsets may belong to other messages by now: a
            # slave that is promoted starts at the committed offsets.
            self._index.write(Change(each.key, 0, remove=True) for each in loaded)
            return
        reconciled = [self._reconciled(change) for change in loaded]
        self._index.write(
            new._replace(clear=True)
            for old, new in zip(loaded, reconciled, strict=True)
            if old != new
        )
        at = self._now()
        for change in reconciled:
            self.table.apply(change, at)
            self._commit(change.key)
        self._update_full()

    def _now(self) -> Moment:
        return Moment(self._clock(), self._steady())

    def _reconciled(self, loaded: Change) -> Change:
        """A queue of the index, made consistent with the log and the offset table.

        After a power cut any of the three may be older than the others, and another broker may have
        used the store. Messages before the committed offset are processed.
        """
        group, topic, queue_id = loaded.key
        end = self._store.with_unconfirmed.max_offset(topic, queue_id)
        done = min(self._offsets.find(group, topic, queue_id), end)
        next_offset = max(min(loaded.next_offset, end), done)
        rows = tuple(row for row in loaded.put if done <= row.queue_offset < end)
        batch = loaded.batch if next_offset == loaded.next_offset else None
        return Change(loaded.key, next_offset, put=rows, batch=batch)

    # -- requests ----------------------------------------------------------------------------------

    def next_offset(self, key: Key) -> int | None:
        """Where a group pops next in a queue; None if it never popped there. Raises RequestError.

        An offset that was set in the offset table takes precedence.
        """
        was_reset = self._offsets.take_reset(*key) is not None
        committed = self.table.committed(key)
        seen = self._offsets.find(*key)
        if committed is None:
            return None if seen == NOT_FOUND else seen
        if was_reset or seen != committed:
            if seen == NOT_FOUND:
                self.apply([Change(key, 0, remove=True)])
                return None
            log.info(
                "group %s: continues at %d in topic %s queue %d, as set in the offset table",
                key.group, seen, key.topic, key.queue_id,
            )  # fmt: skip
            self.apply([Change(key, seen, clear=True)])
        return self.table.next_offset(key)

    def apply(self, changes: Iterable[Change]) -> None:
        """Write changes and apply them. Raises RequestError; then nothing has changed."""
        changes = list(changes)
        self._crash_point("pop: before it is noted")
        try:
            self._index.write(changes)
        except sqlite3.Error as e:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"the broker cannot write its pop index: {e}"
            ) from e
        self._crash_point("pop: it is noted")
        at = self._now()
        for change in changes:
            self.table.apply(change, at)
            if not change.remove:
                self._commit(change.key)
        self._update_full()
        self._is_dirty = True
        next_ms = self.table.next_due_ms()
        if next_ms is not None and (self._planned_ms is None or next_ms < self._planned_ms):
            self._wake.set()

    def _update_full(self) -> None:
        count, count_max = self.table.in_flight_count, self._settings.config.pop_ck_max_buffer_size
        if count >= count_max:
            if not self.is_full:
                log.warning(
                    "popped messages: %d are in flight (popCkMaxBufferSize), no more can be popped "
                    "before some are acknowledged or their time is up", count,
                )  # fmt: skip
            self.is_full = True
        elif self.is_full and count <= count_max - count_max // _FREE_SHARE:
            # Not for every single one, or all parked pops would be tried for each.
            self.is_full = False
            self._on_space()

    def _commit(self, key: Key) -> None:
        committed = self.table.committed(key)
        if committed is not None:
            self._offsets.commit(*key, committed, always=True)

    # -- running -----------------------------------------------------------------------------------

    def clock_changed(self) -> None:
        """A clock was moved; messages may be due."""
        self._wake.set()

    async def run(self) -> None:
        """Revive due messages and maintain the index, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._revive_loop())
            tasks.create_task(self._maintenance_loop())

    async def _revive_loop(self) -> None:
        while True:
            self._wake.clear()
            try:
                is_more = await self._revive_due(self._steady())
                self._failing = False
            except Exception as e:
                # A bug must not end the loop, and a full disk may have space again.
                if not self._failing:
                    known = isinstance(e, TianzhouError | OSError)
                    log.error("popped messages: not revived, retrying: %s", e, exc_info=not known)  # noqa: TRY400 - see known
                self._failing, is_more = True, False
            if is_more:
                await asyncio.sleep(0)
            else:
                await self._wait()

    async def _wait(self) -> None:
        self._planned_ms = next_ms = self.table.next_due_ms()
        wait_s = _IDLE_S
        if next_ms is not None and not self._failing:
            wait_s = min(max(next_ms - self._steady(), 0) / 1000, _IDLE_S)
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._planned_ms = None

    async def _revive_due(self, now_ms: int) -> bool:
        """Revive some due messages; returns whether there may be more. Raises TianzhouError."""
        is_more = self._import_apache_checkpoints()
        for key in self.table.take_unblocked(now_ms):
            self._on_visible(key.topic)
        due = self.table.take_due(now_ms, _REVIVED_PER_SLICE)
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
                "popped messages: %d were not acknowledged and cannot be redelivered, because the "
                "log has deleted them", self._expired_count,
            )  # fmt: skip
            self._expired_count = 0
        await self._drop_revived()
        if failure is not None:
            raise failure
        return True

    # -- checkpoints of RocketMQ -------------------------------------------------------------------

    def _import_apache_checkpoints(self) -> bool:
        """Import messages that RocketMQ delivered; returns whether there are more."""
        checkpoints, is_more = self._checkpoints.poll(self._anchored())
        try:
            for checkpoint in checkpoints:
                self._import_checkpoint(checkpoint)
        except RequestError:
            self._checkpoints.start_over()
            raise
        self._checkpoints.commit()
        return is_more

    def _import_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Record messages that RocketMQ delivered as in flight; they are due already."""
        key = checkpoint.popped.key
        next_offset = self.next_offset(key)
        if next_offset is None:
            next_offset = max(checkpoint.queue_offsets, default=-1) + 1
        known = {row.queue_offset for row in self.table.in_flight(key)}
        # Messages before the group's next offset were delivered; the others will be popped anyway.
        rows = [
            row
            for row in checkpoint.rows()
            if row.queue_offset < next_offset and row.queue_offset not in known
        ]
        if rows:
            self.apply([Change(key, next_offset, put=tuple(rows))])

    async def _drop_revived(self) -> None:
        """Drop revived messages once their copies are secured. Raises TianzhouError."""
        if not self._revived:
            return
        for topic in {receipts.origin_topic(key.group, key.topic) for key, _ in self._revived}:
            self._on_visible(topic)
        end = self._store.end_log_offset
        try:
            if self._created_topic:
                # Without the saved topic a message could not be popped after a crash.
                self._created_topic = not await self._topics_saved()
            if self._created_topic:
                raise StoreError("a retry topic cannot be saved")
            await self._durability.secured(end)
            self._crash_point("pop: the revived are on disk")
            self.apply(self.table.dropped(self._revived))
        except TianzhouError:
            self.table.requeue(self._revived)
            self._revived = []
            raise
        self._revived = []

    def _revive(self, key: Key, row: InFlight) -> bool:
        """Store a message again; False if it is retried later. Raises StoreError."""
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
        # RocketMQ may have served a group whose retry topic is no valid folder name here.
        dead = retry_dlq.decide_retry(group, fields[12], group.retry_max_times, 0).dead or (
            not is_topic_name(topic)
        )
        if dead:
            draft = dead_letter(fields, key.group, origin, self._store_host)
        else:
            draft = revived(fields, topic, row, self._store_host)
        if self._topics.get(draft.topic) is None and is_topic_name(draft.topic):
            self._topics.create_for_group(draft.topic, 1)
            self._created_topic = True
        self._crash_point("pop: before it is revived")
        if not self._append(draft, fields, key, row):
            return False
        self._crash_point("pop: it is revived")
        self._stats.sent_back[origin, key.group] += 1
        if dead:
            self._stats.dead[origin, key.group] += 1
        return True

    def _append(self, draft: Draft, fields: RecordFields, key: Key, row: InFlight) -> bool:
        try:
            self._store.append(draft)
        except RecordError:
            # The added properties do not fit; the original ones do.
            plain = msgspec.structs.replace(draft, properties_text=properties.encode(fields[2]))
            try:
                self._store.append(plain)
            except RecordError as e:
                log.warning(
                    "group %s: message %d of topic %s queue %d cannot be stored again: %s",
                    key.group, row.queue_offset, key.topic, key.queue_id, e,
                )  # fmt: skip
                retry = self.table.prolonged(key, row, self._now(), _RETRY_MS)
                self.apply([] if retry is None else [retry])
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

    async def _maintenance_loop(self) -> None:
        while True:
            await asyncio.sleep(_MAINTENANCE_S)
            try:
                for at, key in enumerate(self.table.keys()):
                    self.next_offset(key)
                    if at % _CHECKED_PER_SLICE == 0:
                        await asyncio.sleep(0)
                if self._is_dirty:
                    self._is_dirty = False
                    await asyncio.to_thread(self._index.checkpoint)
                    self._index.shorten_log()
            except (sqlite3.Error, TianzhouError) as e:
                self._is_dirty = True
                log.warning("pop index: not saved: %s", e)

    async def stop(self) -> None:
        """Drop what was revived, so that the next run does not revive it again, and close."""
        try:
            await self._drop_revived()
        except TianzhouError as e:
            log.warning("popped messages: some may be revived twice: %s", e)
        try:
            await asyncio.to_thread(self._index.checkpoint)
        except sqlite3.Error as e:
            log.warning("pop index: not closed cleanly: %s", e)
        self._index.close()


def revived(fields: RecordFields, topic: str, row: InFlight, store_host: Host) -> Draft:
    """A message that was not acknowledged in time, for the group's retry topic."""
    props = dict(fields[2])
    props.pop(properties.POP_CK, None)
    props.setdefault(properties.FIRST_POP_TIME, str(row.pop_time_ms))
    props.setdefault(properties.ORIGIN_MESSAGE_ID, encode_offset_id(fields[11], fields[5]))
    return redraft(fields, topic, 0, props, fields[12] + 1, store_host)


def dead_letter(fields: RecordFields, group: str, origin: str, store_host: Host) -> Draft:
    """A message that was redelivered too often without an acknowledgement."""
    props = {properties.RETRY_TOPIC: origin} | fields[2]
    named: RecordFields = (fields[0], fields[1], props, *fields[3:])
    return retry_dlq.sent_back(named, group, retry_dlq.RetryDecision(dead=True), 1, store_host, {})[
        0
    ]
