"""Helpers of the store's tests: small settings, messages, reading everything."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tianzhou.protocol.records.record import decode_record
from tianzhou.remoting.scheduler import at_once
from tianzhou.store.config import FlushDiskType, StoreConfig
from tianzhou.store.files.disk import Disk
from tianzhou.store.message_store import Appended, Draft, MessageStore
from tianzhou.store.reading import ReadStatus

ROOT = Path("/store")
BORN = ("10.0.0.1", 5000)
HERE = ("10.0.0.2", 10911)
NOON_MS = 1_700_000_000_000
DEADLINE_S = 60.0


def small_config(
    root: Path = ROOT,
    *,
    log_file_bytes: int = 8192,
    flush: FlushDiskType = FlushDiskType.ASYNC_FLUSH,
    index: bool = True,
) -> StoreConfig:
    """Files so small that everything rolls after a few messages."""
    return StoreConfig(
        store_path_root_dir=root,
        mapped_file_size_commit_log=log_file_bytes,
        mapped_file_size_consume_queue=20 * 7,
        max_hash_slot_num=5,
        max_index_num=12,
        flush_disk_type=flush,
        message_index_enable=index,
        delete_when="25",
        mapped_queue_files_max=16,
    )


@dataclass
class Ticker:
    """A clock that moves when it is read."""

    now_ms: int = NOON_MS
    step_ms: int = 1

    def __call__(self) -> int:
        self.now_ms += self.step_ms
        return self.now_ms


def open_store(
    config: StoreConfig, disk: Disk | None = None, clock: Callable[[], int] | None = None
) -> MessageStore:
    """A store without threads, so that the test controls every step."""
    return MessageStore.open(config, disk=disk, clock=clock or Ticker(), background=False)


def draft(
    topic: str, queue_id: int, body: bytes, *, key: str = "", tags: str = "", sys_flag: int = 0
) -> Draft:
    text = "".join(
        f"{name}\x01{value}\x02" for name, value in (("KEYS", key), ("TAGS", tags)) if value
    )
    return Draft(topic, queue_id, body, text, NOON_MS, BORN, HERE, sys_flag=sys_flag)


def append_batch(store: MessageStore, drafts: list[Draft]) -> Appended:
    return store.append_batch(at_once(store.prepare_batch(drafts)))


def delete_topic(store: MessageStore, topic: str) -> int:
    """Removes the queues of a topic as a broker does; returns how many."""
    queues = list(store.queues.by_topic.get(topic, {}).values())
    store.remove_queues(queues)
    if queues:
        store.flush()
    return len(queues)


@dataclass
class Ledger:
    """Bodies by topic, queue and queue offset: all appended ones, and those acknowledged."""

    given: dict[tuple[str, int, int], bytes] = field(
        default_factory=dict[tuple[str, int, int], bytes]
    )
    safe: dict[tuple[str, int, int], tuple[bytes, int]] = field(
        default_factory=dict[tuple[str, int, int], tuple[bytes, int]]
    )

    bodies: set[bytes] = field(default_factory=set[bytes])
    """All bodies ever appended."""

    def copy(self) -> "Ledger":
        return Ledger(dict(self.given), dict(self.safe), set(self.bodies))

    def gave(self, one: Draft, done: Appended, number: int = 0) -> tuple[str, int, int]:
        position = (one.topic, one.queue_id, done.queue_offset + number)
        self.given[position] = bytes(one.body)
        self.bodies.add(bytes(one.body))
        return position


def read_queue(store: MessageStore, topic: str, queue_id: int) -> dict[int, tuple[bytes, int]]:
    """Body and log offset of each message of a queue, read as a consumer would."""
    found: dict[int, tuple[bytes, int]] = {}
    at, stop = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    while at < stop:
        answer = store.read(topic, queue_id, at, 5)
        assert answer.next_offset > at, answer
        assert answer.status in (ReadStatus.FOUND, ReadStatus.MESSAGE_WAS_REMOVING), answer
        for record in answer.records:
            message = decode_record(record)
            assert (message.topic, message.queue_id) == (topic, queue_id)
            assert message.queue_offset not in found
            found[message.queue_offset] = (message.body, message.log_offset)
        at = answer.next_offset
    return found


def wait_until(condition: Callable[[], bool], seen: Callable[[], object] = lambda: "") -> None:
    """Waits for a condition that another thread makes true."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {DEADLINE_S} s: {seen()}"
        time.sleep(0.002)


def queues_of(store: MessageStore) -> list[tuple[str, int]]:
    return [(queue.topic, queue.queue_id) for queue in store.queues.all()]
