"""Logs of a master to copy, with all kinds of records, and what a store derived from its log."""

import contextlib
import random
from dataclasses import dataclass, field, replace

from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import BORN, HERE, NOON_MS
from tianzhou.errors import StoreFull
from tianzhou.names import SCHEDULE_TOPIC
from tianzhou.protocol import host, kernel, sysflag
from tianzhou.protocol.pure.record import MAGIC_BLANK, SIZE_AND_MAGIC
from tianzhou.store.config import StoreConfig
from tianzhou.store.message_store import MessageStore

BLANK_BYTES = SIZE_AND_MAGIC.size
V6 = ("2001:db8::1", 6)
TOPICS = ("orders", "payments", "x" * 130, SCHEDULE_TOPIC, "no/folder")
STATES = (
    sysflag.TRANSACTION_NONE,
    sysflag.TRANSACTION_NONE,
    sysflag.TRANSACTION_PREPARED,
    sysflag.TRANSACTION_COMMIT,
    sysflag.TRANSACTION_ROLLBACK,
)


def record(
    log_offset: int,
    topic: str,
    queue_offset: int,
    body: bytes = b"body",
    text: str = "",
    *,
    queue_id: int = 0,
    sys_flag: int = 0,
    store_time_ms: int = NOON_MS,
    with_v6: bool = False,
) -> bytes:
    """A record of the log as bytes."""
    return kernel.encode_record(
        topic, body, text, queue_id, queue_offset, log_offset, 0, sys_flag, NOON_MS,
        host.pack(V6 if with_v6 else BORN), store_time_ms, host.pack(HERE), 0, 0,
    )  # fmt: skip


@dataclass
class WrittenLog:
    """A log as a master writes it, in memory."""

    file_bytes: int
    first: int = 0
    data: bytearray = field(default_factory=bytearray)
    boundaries: list[int] = field(default_factory=lambda: [0])
    """Positions at which a record or filler ends."""

    @property
    def end(self) -> int:
        return self.first + len(self.data)

    def begin_file(self, size_bytes: int, garbage: bytes = b"") -> None:
        """Starts a new file, if the last one has no space for a record of this size."""
        left = self.file_bytes - len(self.data) % self.file_bytes
        assert size_bytes + BLANK_BYTES <= self.file_bytes
        if size_bytes + BLANK_BYTES <= left:
            return
        self.data += SIZE_AND_MAGIC.pack(left, MAGIC_BLANK)
        self.data += (garbage + bytes(left))[: left - BLANK_BYTES]
        self.boundaries.append(len(self.data))

    def add(self, encoded: bytes) -> None:
        self.data += encoded
        self.boundaries.append(len(self.data))

    def file(self, number: int) -> bytes:
        return bytes(self.data[number * self.file_bytes : (number + 1) * self.file_bytes])


def random_log(
    dice: random.Random,
    file_bytes: int,
    count: int,
    *,
    first: int = 0,
    damaged_percent: int = 0,
    with_garbage: bool = True,
    deletes: bool = True,
) -> WrittenLog:
    """Records of all kinds in many queues.

    Queues begin in the middle if the log does, and topics are deleted and created again; or
    `damaged_percent` of the records have a queue offset that no master writes, but not 0. With
    `with_garbage` any bytes follow a filler, as in logs of Apache.
    """
    log = WrittenLog(file_bytes, first)
    next_offsets: dict[tuple[str, int], int] = {}
    time_ms = NOON_MS
    while count > 0:
        count -= 1
        topic, queue_id = dice.choice(TOPICS), dice.randrange(3)
        if deletes and dice.random() < 0.02 and not damaged_percent:
            for name in [name for name in next_offsets if name[0] == topic]:
                next_offsets[name] = 0
        time_ms += dice.choice((0, 1, 1500))
        sys_flag = dice.choice(STATES)
        in_queue = sys_flag not in (sysflag.TRANSACTION_PREPARED, sysflag.TRANSACTION_ROLLBACK)
        text = random_text(dice)
        body = dice.randbytes(dice.choice((0, 1, 40, 300, 900)))
        with_v6 = dice.random() < 0.2
        messages = dice.choice((1, 1, 1, 4)) if in_queue else 1
        encoded_bytes = 0
        while True:
            # Messages of a batch are next to each other in one file.
            position = log.end
            batch: list[bytes] = []
            queue_offset = next_offsets.get((topic, queue_id))
            if queue_offset is None:
                queue_offset = dice.choice((0, 0, 3, 20)) if first else 0
            for number in range(messages):
                shown = queue_offset + number if in_queue else 0
                if in_queue and dice.randrange(100) < damaged_percent:
                    shown = dice.choice((shown + 1, shown + 2, shown + 2**40, max(shown - 2, 1)))
                one = record(
                    position, topic, shown, body, text, queue_id=queue_id, sys_flag=sys_flag,
                    store_time_ms=time_ms, with_v6=with_v6,
                )  # fmt: skip
                batch.append(one)
                position += len(batch[-1])
            encoded_bytes = sum(map(len, batch))
            before = log.end
            log.begin_file(encoded_bytes, dice.randbytes(file_bytes) if with_garbage else b"")
            if log.end == before:
                break
        for encoded in batch:
            log.add(_made_special(dice, encoded))
        if in_queue:
            next_offsets[topic, queue_id] = queue_offset + messages
    return log


def random_text(dice: random.Random) -> str:
    found = {
        "TAGS": dice.choice(("", "red", "green")),
        "UNIQ_KEY": dice.choice(("", f"{dice.randrange(10**6):06d}")),
        "KEYS": dice.choice(("", "", "a", "a b c", " d  e ")),
        "DELAY": dice.choice(("", "", "3", "99")),
    }
    return "".join(f"{name}\x01{value}\x02" for name, value in found.items() if value)


def _made_special(dice: random.Random, encoded: bytes) -> bytes:
    """Sometimes text that is not UTF-8, so that the bulk walk declines the record."""
    return encoded.replace(b"\x01red", b"\x01\xffed") if dice.random() < 0.1 else encoded


def copy_in_pieces(store: MessageStore, log: WrittenLog, dice: random.Random, end: int) -> None:
    """Passes a log to a slave up to a log offset, as the network may cut it.

    Repeats a call after StoreFull.
    """
    received = store.end_log_offset
    while store.end_log_offset < end:
        received = min(received + dice.choice((1, 7, 100, 1000, 5000, 100_000)), end)
        start = store.end_log_offset
        with contextlib.suppress(StoreFull):
            store.append_copied(memoryview(log.data)[start - log.first : received - log.first])


def log_files(disk: SimulatedDisk, config: StoreConfig) -> dict[str, bytes]:
    directory = config.log_directory
    return {name: disk.file_bytes(directory / name) for name in disk.names(directory)}


def holds(store: MessageStore, disk: SimulatedDisk, log: WrittenLog) -> None:
    """Asserts that the log of a store is a prefix of another log, byte for byte."""
    size = log.end - log.first
    copied = store.end_log_offset - log.first
    assert copied in log.boundaries
    for name, content in log_files(disk, store.config).items():
        position = int(name) - log.first
        expected = bytes(log.data[:copied]).ljust(size + log.file_bytes, b"\0")
        assert content == expected[position : position + log.file_bytes], name


Derived = tuple[dict[tuple[str, int], tuple[int, list[object]]], list[list[object]]]


def derived_of(store: MessageStore) -> Derived:
    """All queues with their next offset and entries, and the items of all index files."""
    queues: dict[tuple[str, int], tuple[int, list[object]]] = {}
    for queue in store.queues.all():
        if queue.next_offset:
            first = queue.segments.files[0].first // 20
            entries = [queue.entry(at) for at in range(first, queue.next_offset)]
            queues[queue.topic, queue.queue_id] = (queue.next_offset, [first, *entries])
    for file in store.index.files:
        file.ensure_mapped()
    return queues, [list(file.items()) for file in store.index.files]


def derived_again(disk: SimulatedDisk, config: StoreConfig) -> Derived:
    """What a recovery derives from the log of a disk alone; the disk stays as it is."""
    copy = disk.after_kill()
    with MessageStore.open(
        replace(config), disk=copy, background=False, rebuild=True, clock=lambda: NOON_MS
    ) as store:
        return derived_of(store)
