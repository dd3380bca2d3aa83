"""The only entry point of the store: append, read, query, delete, flush, close.

Threads: one thread, the writer, calls `append`, `append_batch`, `append_copied`, `remove_queues`
and `close`. Any thread may read. Three threads work in the background: flush (log), preallocation
(next log file) and housekeeping (queues, checkpoint, retention). Callbacks of `when_flushed` run in
the flush thread.

When `append` returns, the message is in the log and in its queue, and readable; with automatic
failover once it is confirmed (`confirm`). It survives a power cut once `when_flushed` reports its
log offset; acknowledgements wait for that in SYNC_FLUSH.

Over 500 lines: it is the whole interface of the store; the modules that it imports do the work.
"""

import logging
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from itertools import chain, repeat
from time import monotonic
from typing import Self

import msgspec

from tianzhou.clock import Clock, steady_ms, wall_ms
from tianzhou.errors import (
    QueueNameInvalid,
    RecordError,
    StoreBroken,
    StoreClosed,
    StoreError,
)
from tianzhou.limits import BATCH_KEYS_MAX, TOPIC_NAME_BYTES_MAX
from tianzhou.message import Host
from tianzhou.names import SCHEDULE_TOPIC
from tianzhou.protocol import derived, host, kernel, properties
from tianzhou.protocol.derived import key_hash
from tianzhou.protocol.kernel import Feed
from tianzhou.protocol.pure.walk import LOOSE_ITEM
from tianzhou.protocol.records.batch import PreparedBatch
from tianzhou.protocol.records.record import patch_record
from tianzhou.protocol.sysflag import TRANSACTION_MASK
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.config import StoreConfig
from tianzhou.store.consume_queue import ENTRY, ConsumeQueue
from tianzhou.store.copied_log import CopiedLog, Stretch
from tianzhou.store.files import lock
from tianzhou.store.files.checkpoint import Checkpoint
from tianzhou.store.files.disk import Disk, DiskFile, explained
from tianzhou.store.files.real_disk import RealDisk
from tianzhou.store.files.staging import DeferredArrivals, StagingPool
from tianzhou.store.flush import FlushCallback, LogFlush
from tianzhou.store.housekeeping import Housekeeping, Snapshot
from tianzhou.store.kernel_memory import FedBatch, KernelMemory
from tianzhou.store.preallocation import Preallocator
from tianzhou.store.queues import mapped_files_max
from tianzhou.store.reading import StoreReader
from tianzhou.store.recovery import Progress, recover_at_start
from tianzhou.store.recovery_plan import Report, StoreFiles, load_files
from tianzhou.store.truncation.cutting import complete_begun
from tianzhou.store.truncation.open_store import LogTruncation

log = logging.getLogger(__name__)

Arrival = Callable[[str, int, int, int, int], None]
"""Called for each readable message with topic, queue id, queue offset, tags code and store time, by
the writer's thread; with a staging pool (`StoreConfig.is_staged`) by the thread that commits."""


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A message to store, without the fields that depend on its position."""

    topic: str
    queue_id: int
    body: bytes | memoryview
    properties_text: str
    born_time_ms: int
    born_host: Host
    store_host: Host
    flag: int = 0
    sys_flag: int = 0
    reconsume_count: int = 0
    prepared_log_offset: int = 0


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The position of a stored message or batch."""

    log_offset: int
    size_bytes: int
    queue_offset: int
    store_time_ms: int
    count: int
    log_offsets: tuple[int, ...]
    """Of each message of a batch."""

    @property
    def end_log_offset(self) -> int:
        """The log offset to pass to `when_flushed`."""
        return self.log_offset + self.size_bytes


_IS_COPY = StoreError("this broker is a slave, messages are stored by its master")
_PREPARED_TOGETHER = 128
"""Messages and keys of a batch between two pauses."""


class MessageStore(StoreReader, AbstractContextManager["MessageStore"]):
    """An open store."""

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        clock: Clock,
        files: StoreFiles,
        report: Report,
        held: DiskFile,
        on_arrival: Arrival | None,
        steady: Clock = steady_ms,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._held = held
        self._on_arrival = on_arrival
        self.report = report
        """What recovery found and did."""
        # Staged messages write no mapped page, so none needs a page fault in advance.
        warm_bytes = 0 if config.is_staged else config.warm_ahead_bytes
        self._preallocator = Preallocator(disk, files.segments, warm_bytes)
        self._deferred = DeferredArrivals(on_arrival, lambda: self.log.written)
        pool: StagingPool | None = None
        if config.is_staged:
            pool = StagingPool(config.transient_store_pool_size, files.segments.size_bytes)
            self._on_arrival = self._deferred.add if on_arrival else None
        log_ = CommitLog(files.segments, self._preallocator, pool)
        checked_from = report.start_log_offset
        super().__init__(config, log_, files.queues, files.index, checked_from)
        log_.last_store_time_ms = report.last_store_time_ms or files.checkpoint.log_time_ms
        self._flush = LogFlush(disk, log_, config, self._committed)
        self._entry_count = files.queues.entry_count
        self._queue_count = files.queues.count
        self._index_count = files.index.item_count
        self._derived: Snapshot = (0, 0, 0, 0, 0)
        self._housekeeping = Housekeeping(
            disk, config, clock, log_, files.queues, files.index, self._flush,
            snapshot=lambda: self._derived, steady=steady,
        )  # fmt: skip
        self._kernel_memory: KernelMemory | None = None
        self._copied_log = CopiedLog(files, log_, self._copied_stretch, self._revoke_kernel_memory)
        self.on_end_moved: Callable[[], None] | None = None
        """Called by the writer's thread when the end of the readable log has moved; with a staging
        pool by the thread that commits."""
        self.with_unconfirmed = StoreReader(config, log_, files.queues, files.index, checked_from)
        """Shows what readers must not see yet, too: for work that stores its results in the same
        log, behind what it has read, so that no switch keeps a result without its origin."""
        self.truncation = LogTruncation(
            files, log_, self._flush, self._housekeeping, self._preallocator,
            self._prepare_truncation, self.flush, self._truncated,
        )  # fmt: skip
        self._closed = False
        self._is_copy = False
        self._stopped_by: StoreError | None = None
        self._refused_by: StoreError | None = None
        """Why nothing is stored although it could be: one of the two above."""
        self._delay_levels_ms = config.delay_levels_ms

    # -- opening and closing --------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        config: StoreConfig,
        *,
        disk: Disk | None = None,
        clock: Clock = wall_ms,
        background: bool = True,
        rebuild: bool = False,
        progress: Progress = lambda done, total: None,
        on_arrival: Arrival | None = None,
        steady: Clock = steady_ms,
    ) -> Self:
        """Opens or creates a store, after recovery. Raises StoreError.

        Without `background` no thread is started: the caller flushes and expires. `rebuild`
        derives all queues and the index again from the log.
        """
        disk = disk or RealDisk()
        root = config.root_directory
        try:
            disk.make_directory(root)
            held = lock.acquire_lock(disk, root)
            try:
                clean = not lock.was_aborted(disk, root)
                files = load_files(disk, config, clock)
                # From here on files change, so an interruption is an unclean stop.
                lock.mark_running(disk, root)
                begun = complete_begun(files)
                report = recover_at_start(files, clean=clean, rebuild=rebuild, progress=progress)
                store = cls(config, disk, clock, files, report, held, on_arrival, steady)
                store._begin(report.end_log_offset, files.checkpoint)
                store.truncation.begin(begun)
                if background:
                    store._start()
            except BaseException:
                held.close()
                raise
        except OSError as e:
            raise explained(e, f"open the store {root}") from e
        log.info(
            "store %s: open, log %d to %d, %d queues, %d records replayed, last stop %s",
            root, store.first_log_offset, store.end_log_offset, files.queues.count,
            report.replayed_count, "clean" if clean else "not clean",
        )  # fmt: skip
        return store

    def _begin(self, end_log_offset: int, before: Checkpoint) -> None:
        self.log.start_at(end_log_offset)
        self._flush.flushed = end_log_offset
        self._flush.flushed_time_ms = self.log.last_store_time_ms
        self._publish()
        self._housekeeping.begin(before)

    def _start(self) -> None:
        self._flush.start()
        self._preallocator.start()
        self.log.start_at(self.log.written)
        self._housekeeping.start()

    def close(self) -> None:
        """Flushes everything and closes the store. Does nothing if it is closed."""
        if self._closed:
            return
        self._closed = True
        self._revoke_kernel_memory()
        self._housekeeping.stop()
        self._preallocator.stop()
        try:
            if self._flush.failure is None:
                self._housekeeping.checkpoint()
                lock.mark_closed(self._disk, self.config.root_directory)
            else:
                log.warning("store: closed after a failed flush, the next start recovers it")
        except OSError as e:
            raise explained(e, "close the store") from e
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Closes the store without flushing, as if the process had died."""
        self._closed = True
        self._revoke_kernel_memory()
        self._housekeeping.stop()
        self._preallocator.stop()
        self._flush.stop()
        self._release()
        self._held.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def apply_config(self, config: StoreConfig) -> None:
        """Applies changed settings; those that are not live take effect after a restart."""
        self.config = self.with_unconfirmed.config = config
        self._housekeeping.config = config

    # -- writing --------------------------------------------------------------------------------

    @property
    def refusal(self) -> StoreError | None:
        """The error that every append raises now; None if the store accepts messages."""
        if self._closed:
            return StoreClosed("the store is closed")
        return self._flush.failure or self._housekeeping.refusal or self._refused_by

    @property
    def is_copy(self) -> bool:
        """It is that of a slave: nothing is stored but copies of its master's log."""
        return self._is_copy

    @is_copy.setter
    def is_copy(self, is_copy: bool) -> None:
        self._is_copy = is_copy
        self.stop_writes(self._stopped_by)

    def stop_writes(self, reason: StoreError | None) -> None:
        """Raise `reason` for all further messages, None: accept them; copies are appended always.

        What the fast path has accepted before is stored.
        """
        if self._kernel_memory is not None:
            self._kernel_memory.commit()
        self._stopped_by = reason
        self._refused_by = reason or (_IS_COPY if self._is_copy else None)

    def append(self, draft: Draft, found: dict[str, str] | None = None) -> Appended:
        """Stores one message; `found` are its properties if the caller has decoded them.

        Raises StoreError or RecordError, without a change.
        """
        self._check_accepts()
        log_, topic, queue_id, sys_flag = self.log, draft.topic, draft.queue_id, draft.sys_flag
        queue = self.queues.get(topic, queue_id) or self._new_queue(topic, queue_id)
        if found is None:
            found = properties.decode(draft.properties_text)
        in_queue = not sys_flag & TRANSACTION_MASK or derived.has_queue_entry(sys_flag)
        keys = self._keys(found, sys_flag)
        queue_offset = queue.next_offset if in_queue else 0
        now_ms = self._clock()
        log_offset = log_.written
        record: bytes | bytearray = self._encode(draft, queue_offset, log_offset, now_ms)
        size_bytes = len(record)
        try:
            if in_queue:
                queue.ensure_space(1)
            if keys and not self.index.has_space(len(keys)):
                self.index.ensure_space(len(keys), map(key_hash, repeat(topic), keys))
            allocated = log_.allocate(size_bytes)
        except OSError as e:
            raise explained(e, "store a message") from e
        if allocated != log_offset:
            log_offset, record = allocated, bytearray(record)
            patch_record(
                record, 0, queue_offset=queue_offset, log_offset=allocated, store_time_ms=now_ms
            )
        log_.append(record, now_ms)
        code = 0
        if in_queue:
            code = derived.tags_code(topic, found, now_ms, self._delay_levels_ms)
            if queue_offset and not queue.writes_ext:
                # Inlined `_put_entry`, for a queue that has entries.
                queue.put(log_offset, size_bytes, code)
                self._entry_count += 1
            else:
                self._put_entry(queue, log_offset, size_bytes, code)
        if keys:
            self.index.put(topic, keys, log_offset, now_ms)
            self._index_count += len(keys)
        # Inlined `_publish`.
        self._derived = (
            log_.written, self._queue_count, self._entry_count, self._index_count, now_ms,
        )  # fmt: skip
        if in_queue:
            if self._kernel_memory is not None:
                self._kernel_memory.note(queue)
            if self._on_arrival is not None:
                self._on_arrival(topic, queue_id, queue_offset, code, now_ms)
        if self.on_end_moved is not None:
            self._end_moved()
        return Appended(log_offset, size_bytes, queue_offset, now_ms, 1, (log_offset,))

    def prepare_batch(self, drafts: list[Draft]) -> Generator[None, None, PreparedBatch]:
        """Encodes messages of one queue, with pauses for other work; stores nothing.

        Raises RecordError, and StoreError for messages that make no batch.
        """
        if not drafts:
            raise StoreError("a batch holds at least one message")
        topic, queue_id = drafts[0].topic, drafts[0].queue_id
        if topic == SCHEDULE_TOPIC:
            raise StoreError("a batch holds no delayed messages")
        records, sizes, codes = bytearray(), list[int](), list[int]()
        hashes: list[list[int]] = []
        key_count = unpaused_count = 0
        for draft in drafts:
            if (draft.topic, draft.queue_id) != (topic, queue_id):
                raise StoreError("the messages of a batch belong to one queue")
            if not derived.has_queue_entry(draft.sys_flag):
                raise StoreError("a batch holds no transactional messages")
            found = properties.decode(draft.properties_text)
            keys = self._keys(found, draft.sys_flag)
            hashes.append([key_hash(topic, key) for key in keys])
            codes.append(derived.tags_code(topic, found, 0, self._delay_levels_ms))
            record = self._encode(draft, 0, 0, 0)
            sizes.append(len(record))
            records += record
            key_count += len(keys)
            if key_count > BATCH_KEYS_MAX:
                raise RecordError(
                    f"the messages of the batch have more than {BATCH_KEYS_MAX} keys together"
                )
            unpaused_count += 1 + len(keys)
            if unpaused_count >= _PREPARED_TOGETHER:
                unpaused_count = 0
                yield
        if key_count >= self.index.item_max:
            raise StoreError(f"a batch of {key_count} keys does not fit an index file")
        return PreparedBatch(topic, queue_id, records, sizes, codes, hashes, key_count)

    def append_batch(self, batch: PreparedBatch) -> Appended:
        """Stores messages of one queue next to each other: all of them, or none if it raises.

        Raises as `append` does.
        """
        self._check_accepts()
        topic, queue_id, records = batch.topic, batch.queue_id, batch.records
        queue = self.queues.get(topic, queue_id) or self._new_queue(topic, queue_id)
        now_ms, queue_offset, count = self._clock(), queue.next_offset, len(batch.sizes)
        try:
            queue.ensure_space(count)
            if batch.key_count:
                self.index.ensure_space(batch.key_count, chain.from_iterable(batch.hashes))
            log_offset = self.log.allocate(len(records))
        except OSError as e:
            raise explained(e, "store a batch") from e
        log_offsets: list[int] = []
        position = 0
        for number, size_bytes in enumerate(batch.sizes):
            patch_record(
                records, position, queue_offset=queue_offset + number,
                log_offset=log_offset + position, store_time_ms=now_ms,
            )  # fmt: skip
            log_offsets.append(log_offset + position)
            position += size_bytes
        self.log.append(records, now_ms)
        self._put_entries(queue, log_offsets, batch)
        if batch.key_count:
            item = LOOSE_ITEM.pack
            self.index.put_many(
                b"".join(
                    item(hashed, at, now_ms)
                    for at, hashes in zip(log_offsets, batch.hashes, strict=True)
                    for hashed in hashes
                )
            )
            self._index_count += batch.key_count
        self._publish()
        if self._kernel_memory is not None:
            self._kernel_memory.note(queue)
        if self._on_arrival is not None:
            self._on_arrival(topic, queue_id, queue.next_offset - 1, batch.codes[-1], now_ms)
        self._end_moved()
        return Appended(
            log_offset, len(records), queue_offset, now_ms, count, tuple(log_offsets)
        )  # fmt: skip

    def _put_entries(
        self, queue: ConsumeQueue, log_offsets: list[int], batch: PreparedBatch
    ) -> None:
        if queue.writes_ext:
            for at, size_bytes, code in zip(log_offsets, batch.sizes, batch.codes, strict=True):
                self._put_entry(queue, at, size_bytes, code)
            return
        if not queue.next_offset:
            self._queue_count += 1
        queue.put_many(b"".join(map(ENTRY.pack, log_offsets, batch.sizes, batch.codes)))
        self._entry_count += len(log_offsets)

    def _encode(self, draft: Draft, queue_offset: int, log_offset: int, now_ms: int) -> bytes:
        body_bytes_max = self.config.max_message_size
        if len(draft.body) > body_bytes_max:
            raise RecordError(f"the body has {len(draft.body)} bytes, {body_bytes_max} are allowed")
        return kernel.encode_record(
            draft.topic, draft.body, draft.properties_text, draft.queue_id, queue_offset,
            log_offset, draft.flag, draft.sys_flag, draft.born_time_ms, host.pack(draft.born_host),
            now_ms, host.pack(draft.store_host), draft.reconsume_count, draft.prepared_log_offset,
        )  # fmt: skip

    def _keys(self, found: dict[str, str], sys_flag: int) -> list[str]:
        if not self.config.message_index_enable:
            return []
        keys = derived.index_keys(found, sys_flag)
        return keys if len(keys) < self.index.item_max else keys[: self.index.item_max - 1]

    def _put_entry(self, queue: ConsumeQueue, log_offset: int, size_bytes: int, code: int) -> None:
        if not queue.next_offset:
            self._queue_count += 1
        if queue.writes_ext:
            code = queue.code_of(code, self.log.last_store_time_ms)
        queue.put(log_offset, size_bytes, code)
        self._entry_count += 1

    def _new_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        if not derived.is_topic_name(topic) or queue_id < 0:
            raise QueueNameInvalid(
                f"{topic[:80]!r} queue {queue_id} cannot be the name of a queue: a topic has 1 to "
                f"{TOPIC_NAME_BYTES_MAX} bytes, this one {derived.name_bytes(topic)}, and no /"
            )
        return self.queues.get_or_make(topic, queue_id)

    def begin_queue(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Let a queue without entries begin at a queue offset. Raises StoreError."""
        self._check_writable()
        queue = self.queues.get(topic, queue_id) or self._new_queue(topic, queue_id)
        if not queue.next_offset and queue_offset > 0:
            try:
                queue.skip_to(queue_offset)
            except OSError as e:
                raise explained(e, f"begin queue {topic}/{queue_id}") from e
            self._queue_count += 1
            self._entry_count += queue_offset
            self._publish()

    def _check_accepts(self) -> None:
        if self._refused_by is not None:
            raise self._refused_by
        self._check_writable()

    def _check_writable(self) -> None:
        if (
            self._closed
            or self._flush.failure is not None
            or self._housekeeping.refusal is not None
        ):
            refusal = self.refusal
            assert refusal is not None
            raise refusal
        if self._kernel_memory is not None:
            self._kernel_memory.before_append()

    def _publish(self) -> None:
        # One assignment, so that the housekeeping thread never sees inconsistent counts.
        self._derived = (
            self.log.written, self._queue_count, self._entry_count, self._index_count,
            self.log.last_store_time_ms,
        )  # fmt: skip

    # -- the fast path --------------------------------------------------------------------------

    def attach_feed(self, feed: Feed, admits: Callable[[str], bool]) -> KernelMemory:
        """Lets a feed of the kernel write; `admits` says whether it may write a topic's queues."""
        # The feed does not write the log through mapped memory, so no page fault is saved.
        self._preallocator.stop_warming()
        queue_max = mapped_files_max(self.config) // 2
        self._kernel_memory = KernelMemory(feed, self.log, self.index, queue_max, admits)
        return self._kernel_memory

    def commit_fed(self, done: FedBatch, store_time_ms: int, *, notify: bool) -> None:
        """Commits what a feed wrote. Raises StoreError; then nothing is committed.

        With `notify` the arrival callback is called, once for each queue.
        """
        message_count, _, size_bytes, key_count, queues = done
        assert self._kernel_memory is not None
        try:
            self.log.write(self._kernel_memory.stage[:size_bytes], store_time_ms)
        except OSError as e:
            raise explained(e, "store messages") from e
        for queue, next_offset, end_log_offset, _ in queues:
            queue.next_offset, queue.end_log_offset = next_offset, end_log_offset
        if key_count:
            self.index.files[-1].read_header()
        self._entry_count += message_count
        self._index_count += key_count
        self._publish()
        self._kernel_memory.refill(done)
        if notify and self._on_arrival is not None:
            for queue, next_offset, _, code in queues:
                self._on_arrival(queue.topic, queue.queue_id, next_offset - 1, code, store_time_ms)
        self._end_moved()

    def _revoke_kernel_memory(self) -> None:
        if self._kernel_memory is not None:
            self._kernel_memory.revoke()

    # -- copies of a master's log ---------------------------------------------------------------

    def begin_copy_at(self, log_offset: int) -> None:
        """Lets an empty log begin at the beginning of another log file.

        That is forgotten at a restart, if nothing was appended until then. Raises StoreError.
        """
        self._check_writable()
        self._revoke_kernel_memory()
        try:
            self._copied_log.check_beginning(log_offset)
            self._preallocator.discard()
            self._copied_log.begin_at(log_offset)
        except OSError as e:
            raise explained(e, "prepare the copy of a log") from e
        self._flush.restart_at(log_offset)
        self._count_again()

    def append_copied(self, data: memoryview) -> int:
        """Appends the complete records of a master's log that `data` begins with, byte for byte.

        `data` begins at `end_log_offset`; the filler of a log file counts as a record, with all
        bytes behind it up to the end of the file. Returns how many bytes were appended; the caller
        passes the others again, with more bytes.

        Raises StoreCorrupt at bytes that are no record: those before them are appended, see
        `end_log_offset`. Raises StoreError, StoreFull if nothing could be appended; if only a part
        could, its size is returned.
        """
        self._check_writable()
        if self.log.is_staged:
            self.commit()  # staged records are behind `end_log_offset`
        before = self.log.written
        try:
            return self._copied_log.append(data)
        except StoreBroken as e:
            self._housekeeping.refusal = e
            raise
        finally:
            if self.log.written != before:
                self._report_copied()

    def _copied_stretch(self, stretch: Stretch) -> None:
        self._entry_count += stretch.entry_delta
        self._queue_count += stretch.queue_delta
        if stretch.is_stored:
            self._index_count += len(stretch.items) // LOOSE_ITEM.size
            if self._kernel_memory is not None:
                for queue in stretch.counts:
                    self._kernel_memory.note(queue)
        self._publish()

    def _report_copied(self) -> None:
        arrivals = self._copied_log.drain_arrivals()
        if self._on_arrival is not None:
            for arrival in arrivals:
                self._on_arrival(*arrival)
        if self.log.is_staged:
            self.commit()
        elif self.on_end_moved is not None:
            self.on_end_moved()

    def _end_moved(self) -> None:
        if self.on_end_moved is not None and not self.log.is_staged:
            self.on_end_moved()

    # -- truncation -----------------------------------------------------------------------------

    def _prepare_truncation(self) -> None:
        if self._closed:
            raise StoreClosed("the store is closed")
        self._revoke_kernel_memory()
        self.commit()

    def _truncated(self, log_offset: int) -> None:
        self._copied_log.forget_from(log_offset)
        self._deferred.clear()
        for reader in (self, self.with_unconfirmed):
            reader.checked_from = min(reader.checked_from, log_offset)
        if self.shows_confirmed:
            self.show_confirmed(min(self.confirmed_log_offset, log_offset))
        self._count_again()

    def _count_again(self) -> None:
        self._entry_count, self._queue_count = self.queues.entry_count, self.queues.count
        self._index_count = self.index.item_count + self._housekeeping.index_removed
        self._publish()

    # -- staging --------------------------------------------------------------------------------

    def commit(self) -> None:
        """Makes staged messages readable, as a thread does every 200 ms. Raises StoreError."""
        try:
            self._flush.commit()
        except OSError as e:
            raise explained(e, "commit messages to the log") from e

    def _committed(self, log_offset: int) -> None:
        self._deferred.committed(log_offset)
        if self.on_end_moved is not None and self.log.is_staged:
            self.on_end_moved()

    # -- durability -----------------------------------------------------------------------------

    @property
    def flushed_log_offset(self) -> int:
        """Everything before this log offset survives a power cut."""
        return self._flush.flushed

    @property
    def fsync_pending_ms(self) -> int:
        """How long a sync of the log has been running; 0 if none is."""
        since_s = self._flush.syncing_since_s
        return 0 if since_s is None else int((monotonic() - since_s) * 1000)

    @property
    def disk_failure(self) -> StoreError | None:
        """Why nothing is stored any more: a write or a sync failed; a full disk is no failure."""
        refusal = self._housekeeping.refusal
        if self._flush.failure is None and isinstance(refusal, StoreBroken):
            return refusal
        return self._flush.failure

    def when_flushed(self, log_offset: int, callback: FlushCallback) -> None:
        """Calls `callback` once the log is on disk up to `log_offset`; see `FlushCallback`."""
        self._flush.when_flushed(log_offset, callback)

    def flushed(self, log_offset: int) -> Future[None]:
        """The same as a future."""
        return self._flush.future(log_offset)

    def flush(self) -> None:
        """Flushes log, queues and index and writes the checkpoint. Raises StoreError."""
        self._flush.flush()
        try:
            self._housekeeping.checkpoint()
        except OSError as e:
            raise explained(e, "flush the store") from e

    # -- deleting -------------------------------------------------------------------------------

    def remove_queues(self, queues: list[ConsumeQueue]) -> None:
        """Removes queues; their messages stay in the log until they expire.

        A queue that is used again begins at queue offset 0. Until `flush` returns a power cut may
        restore them, by a recovery from the last checkpoint.
        """
        self._check_writable()
        self._revoke_kernel_memory()
        for queue in queues:
            if queue.next_offset:
                self._queue_count -= 1
                self._entry_count -= queue.next_offset
            try:
                self.queues.remove(queue)
            except OSError as e:
                raise explained(e, f"delete queue {queue.topic}/{queue.queue_id}") from e
        self._publish()

    def expire(self, *, now: bool = False) -> int:
        """Removes expired log files, at any hour if `now`; returns how many."""
        try:
            return self._housekeeping.expire(manual=now)
        except OSError as e:
            raise explained(e, "remove old files") from e
