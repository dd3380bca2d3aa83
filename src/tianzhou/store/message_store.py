"""The only entry point of the store: append, read, query, delete, flush, close.

Threads: one thread, the writer, calls `append`, `append_batch`, `remove_queues` and `close`. Any
thread may read. Three threads work in the background: flush (log), preallocation (next log file)
and housekeeping (queues, checkpoint, retention). Callbacks of `when_flushed` run in the flush
thread.

When `append` returns, the message is in the log and in its queue, and readable. It survives a power
cut once `when_flushed` reports its log offset; acknowledgements wait for that in SYNC_FLUSH.

Over 500 lines: it is the whole interface of the store; the work is done in the modules that it
imports.
"""

import logging
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain, repeat
from types import TracebackType
from typing import Self

import msgspec

from tianzhou.clock import Clock, steady_ms, wall_ms
from tianzhou.errors import QueueNameInvalid, RecordError, StoreClosed, StoreCorrupt, StoreError
from tianzhou.limits import BATCH_KEYS_MAX, TOPIC_NAME_BYTES_MAX
from tianzhou.message import Host
from tianzhou.names import SCHEDULE_TOPIC
from tianzhou.protocol import derived, host, kernel, properties
from tianzhou.protocol.derived import key_hash
from tianzhou.protocol.kernel import Feed
from tianzhou.protocol.pure.walk import LOOSE_ITEM
from tianzhou.protocol.records.record import patch_record
from tianzhou.protocol.sysflag import TRANSACTION_MASK
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.config import StoreConfig
from tianzhou.store.consume_queue import ENTRY, ConsumeQueue
from tianzhou.store.files import lock
from tianzhou.store.files.checkpoint import Checkpoint, read_checkpoint
from tianzhou.store.files.disk import Disk, DiskFile, explained
from tianzhou.store.files.real_disk import RealDisk
from tianzhou.store.files.segments import Segments
from tianzhou.store.files.staging import StagingPool
from tianzhou.store.flush import FlushCallback, LogFlush
from tianzhou.store.housekeeping import Housekeeping, Snapshot
from tianzhou.store.index import Index
from tianzhou.store.kernel_memory import FedBatch, KernelMemory
from tianzhou.store.preallocation import Preallocator
from tianzhou.store.queues import QueueTable, mapped_files_max
from tianzhou.store.reading import StoreReader
from tianzhou.store.recovery import Progress, recover
from tianzhou.store.recovery_plan import Report, StoreFiles

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


_PREPARED_TOGETHER = 128
"""Messages and keys of a batch between two pauses."""


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """The messages of a batch, encoded but for their offsets and their store time."""

    topic: str
    queue_id: int
    records: bytearray
    sizes: list[int]
    """Of the records in bytes."""
    codes: list[int]
    """The tags codes of their queue entries."""
    hashes: list[list[int]]
    """Of the keys of each."""
    key_count: int


class MessageStore(StoreReader):
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
        pool: StagingPool | None = None
        if config.is_staged:
            pool = StagingPool(config.transient_store_pool_size, files.segments.size_bytes)
            self._on_arrival = self._defer_arrival if on_arrival else None
        self._committed_arrival = on_arrival
        self._uncommitted_arrivals: deque[tuple[int, tuple[str, int, int, int, int]]] = deque()
        """Messages that are not committed yet, each with the log offset that makes it readable."""
        log_ = CommitLog(files.segments, self._preallocator, pool)
        super().__init__(config, log_, files.queues, files.index, report.start_log_offset)
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
        self._closed = False
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
                files = _store_files(disk, config, clock)
                # From here on files change, so an interruption is an unclean stop.
                lock.mark_running(disk, root)
                report = _recover(files, clean=clean, rebuild=rebuild, progress=progress)
                store = cls(config, disk, clock, files, report, held, on_arrival, steady)
                store._begin(report.end_log_offset, files.checkpoint)
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
            self._flush.stop()
            self._release()
            self._held.close()

    def abandon(self) -> None:
        """Closes the store without flushing, as if the process had died."""
        self._closed = True
        self._revoke_kernel_memory()
        self._housekeeping.stop()
        self._preallocator.stop()
        self._flush.stop()
        self._release()
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def apply_config(self, config: StoreConfig) -> None:
        """Applies changed settings; those that are not live take effect after a restart."""
        self.config = config
        self._housekeeping.config = config

    # -- writing --------------------------------------------------------------------------------

    @property
    def refusal(self) -> StoreError | None:
        """The error that every append raises now; None if the store accepts messages."""
        if self._closed:
            return StoreClosed("the store is closed")
        return self._flush.failure or self._housekeeping.refusal

    def append(self, draft: Draft, found: dict[str, str] | None = None) -> Appended:
        """Stores one message; `found` are its properties if the caller has decoded them.

        Raises StoreError or RecordError, without a change.
        """
        self._check_writable()
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
        self._check_writable()
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

    def _revoke_kernel_memory(self) -> None:
        if self._kernel_memory is not None:
            self._kernel_memory.revoke()

    # -- staging --------------------------------------------------------------------------------

    def commit(self) -> None:
        """Makes staged messages readable. Raises StoreError.

        The commit thread calls it every 200 ms. Without a staging pool it does nothing.
        """
        try:
            self._flush.commit()
        except OSError as e:
            raise explained(e, "commit messages to the log") from e

    def _defer_arrival(
        self, topic: str, queue_id: int, queue_offset: int, code: int, time_ms: int
    ) -> None:
        arrival = (topic, queue_id, queue_offset, code, time_ms)
        self._uncommitted_arrivals.append((self.log.written, arrival))

    def _committed(self, log_offset: int) -> None:
        arrivals, callback = self._uncommitted_arrivals, self._committed_arrival
        while arrivals and arrivals[0][0] <= log_offset:
            _, arrival = arrivals.popleft()
            if callback is not None:
                callback(*arrival)

    # -- durability -----------------------------------------------------------------------------

    @property
    def flushed_log_offset(self) -> int:
        """Everything before this log offset survives a power cut."""
        return self._flush.flushed

    def when_flushed(self, log_offset: int, callback: FlushCallback) -> None:
        """Calls `callback` once the log is on disk up to `log_offset`; see `FlushCallback`."""
        self._flush.when_flushed(log_offset, callback)

    def flushed(self, log_offset: int) -> Future[None]:
        """The same as a future."""
        future: Future[None] = Future()

        def on_flushed(reason: StoreError | None) -> None:
            if not future.set_running_or_notify_cancel():
                return  # cancelled
            if reason is None:
                future.set_result(None)
            else:
                future.set_exception(reason)

        self.when_flushed(log_offset, on_flushed)
        return future

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


def _store_files(disk: Disk, config: StoreConfig, clock: Clock) -> StoreFiles:
    for directory in (config.log_directory, config.queue_directory):
        disk.make_directory(directory)
    segments = Segments(disk, config.log_directory, config.mapped_file_size_commit_log)
    checkpoint = read_checkpoint(disk, config.root_directory / "checkpoint")
    index = Index(disk, config, clock)
    return StoreFiles(disk, config, segments, QueueTable(disk, config), index, checkpoint)


def _recover(files: StoreFiles, *, clean: bool, rebuild: bool, progress: Progress) -> Report:
    try:
        report = recover(files, clean=clean, progress=progress, rebuild=rebuild)
    except StoreCorrupt:
        # Nothing was changed, so a clean store stays clean.
        if clean:
            lock.mark_closed(files.disk, files.config.root_directory)
        raise
    _warn_of_low_space(files.disk, files.config, files.segments)
    return report


def _warn_of_low_space(disk: Disk, config: StoreConfig, segments: Segments) -> None:
    """Disk blocks are allocated while a log file is written, so it may fill the disk half-way."""
    free_bytes = disk.free_bytes(config.log_directory)
    if not segments.files and free_bytes < segments.size_bytes:
        log.warning(
            "store %s: %d bytes are free on the disk, the first log file needs %d as it fills; "
            "when the disk is full every message is refused (free some space)",
            config.root_directory, free_bytes, segments.size_bytes,
        )  # fmt: skip
