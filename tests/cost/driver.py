"""Runs each of the kernel's paths twice, with a marker at the end of each run.

Run by `counting.py` under callgrind. Each run ends with `MARK`, at which callgrind dumps its counts
since the previous mark. The second run repeats the first `TIMES` times, so the difference of both
excludes one-time costs.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

import tianzhou_kernel

from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command, HeaderEncoding, encode
from tianzhou.protocol.records import batch
from tianzhou.protocol.records.message_id import encode_offset_id

MARK = "getsid"
"""A function of the C library that nothing else calls here; callgrind gets its name."""
TIMES = 3

TOPIC, GROUP = "orders", "readers"
HOST = bytes((10, 0, 0, 1, 0, 0, 0x2A, 0x9F))
NOW_MS = 1_700_000_000_000
QUEUE_COUNT = 4
FRAMES_PER_BUFFER = 16
BUFFER_COUNT = 8
BATCH_SIZE = 32
PULLED_COUNT = 32
LOG_BYTES = 16 << 20
STAGE_BYTES = 512 << 10
SLOT_COUNT, ITEM_MAX = 10_007, 100_000
QUEUE_ENTRY_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Work:
    """A path, and the number of messages of one run."""

    name: str
    message_count: int
    walk: Callable[[], None]


@dataclass(slots=True)
class Queue:
    """The interface of a queue that the feed reads."""

    next_offset: int = 0


class Fed:
    """A feed with its own memory, as `store/kernel_memory.py` would provide it."""

    def __init__(self) -> None:
        self.log = bytearray(LOG_BYTES)
        self.position = 0
        self.feed = feed = tianzhou_kernel.Feed()
        feed.configure(
            frame_max=16 << 20, body_max=4 << 20, batch_max=10_000, batch_keys_max=40_000,
            index_on=True, waits=False, store_host=HOST,
            id_prefix=encode_offset_id(("10.0.0.1", 10911), 0)[:-16], cluster="DefaultCluster",
            special_names=["DELAY", "TRAN_MSG"], region="DefaultRegion", trace_on=True, version=500,
            pull_on=True, lite_pull_on=True, pull_count=32, read_count=32,
            read_bytes=256 << 10, memory_bytes=1 << 40, checked_from=0,
        )  # fmt: skip
        feed.put_topic(TOPIC, QUEUE_COUNT, QUEUE_COUNT, False)
        feed.grant_log(memoryview(self.log), 0, 0)
        self.stage = bytearray(STAGE_BYTES)
        feed.grant_stage(memoryview(self.stage))
        index = bytearray(40 + 4 * SLOT_COUNT + 20 * ITEM_MAX)
        feed.grant_index(memoryview(index), SLOT_COUNT, ITEM_MAX, ITEM_MAX)
        for queue_id in range(QUEUE_COUNT):
            memory = memoryview(bytearray(20 * QUEUE_ENTRY_MAX))
            queue = Queue()
            feed.grant_queue(TOPIC, queue_id, queue, memory, 0, 0, QUEUE_ENTRY_MAX)
            feed.grant_queue_file(TOPIC, queue_id, queue, memory, 0, QUEUE_ENTRY_MAX, 0)
        feed.grant_pulls(TOPIC, GROUP, None, None, (0, 1))

    def take(self, buffer: bytes, message_count: int) -> None:
        """Feed frames, which must all be handled, and end the batch."""
        start, stop, answers, _, _, _ = self.feed.feed(buffer, 0, HOST, NOW_MS, 1000, -1)
        done = self.feed.end_batch()
        carried = done[0] if done else sum(one[3][0] for one in self.feed.drain_delivered())
        if not (start == stop == len(buffer) and answers and carried == message_count):
            raise SystemExit(f"the feed took {carried} of {message_count} messages, up to {start}")
        if done:
            records = self.stage[: done[2]]
            self.log[self.position : self.position + len(records)] = records
            self.position += len(records)
            for queue, next_offset, _, _ in done[4]:
                queue.next_offset = next_offset


def properties_of(number: int) -> str:
    return f"KEYS\x01k{number:08}\x02UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02TAGS\x01red\x02"


def send_frame(number: int, encoding: HeaderEncoding, body: bytes, code: int) -> bytes:
    fields = {
        "a": "producers", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % QUEUE_COUNT),
        "f": "0", "g": str(NOW_MS), "h": "0", "i": properties_of(number), "j": "0", "k": "false",
        "l": "16", "m": "true" if code == RequestCode.SEND_BATCH_MESSAGE else "false",
    }  # fmt: skip
    command = Command(
        code=code, opaque=number, language=0, version=500, ext_fields=fields, body=body,
        encoding=encoding,
    )  # fmt: skip
    return encode(command)


def sends(fed: Fed, encoding: HeaderEncoding, body_bytes: int) -> Work:
    frames = [
        send_frame(number, encoding, bytes(body_bytes), RequestCode.SEND_MESSAGE_V2)
        for number in range(FRAMES_PER_BUFFER)
    ]
    buffer = b"".join(frames)

    def walk() -> None:
        for _ in range(BUFFER_COUNT):
            fed.take(buffer, FRAMES_PER_BUFFER)

    label = "JSON" if encoding is HeaderEncoding.JSON else "binary"
    return Work(f"send {body_bytes} B, {label}", FRAMES_PER_BUFFER * BUFFER_COUNT, walk)


def batches(fed: Fed) -> Work:
    items = [
        batch.BatchItem(body=bytes(100), properties_text=properties_of(number))
        for number in range(BATCH_SIZE)
    ]
    body, code = batch.encode(items), RequestCode.SEND_BATCH_MESSAGE
    buffer = b"".join(send_frame(number, HeaderEncoding.JSON, body, code) for number in range(4))

    def walk() -> None:
        for _ in range(2):
            fed.take(buffer, 4 * BATCH_SIZE)

    return Work(f"batch {BATCH_SIZE} x 100 B", 8 * BATCH_SIZE, walk)


def pulls(fed: Fed) -> Work:
    fields = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "queueOffset": "0",
        "maxMsgNums": str(PULLED_COUNT), "sysFlag": "4", "commitOffset": "0",
        "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        "expressionType": "TAG",
    }  # fmt: skip
    pull = Command(code=RequestCode.PULL_MESSAGE, opaque=7, language=0, ext_fields=fields)
    buffer = encode(pull)

    def walk() -> None:
        for _ in range(BUFFER_COUNT):
            fed.take(buffer, PULLED_COUNT)

    return Work(f"pull {PULLED_COUNT} x 1 KiB", PULLED_COUNT * BUFFER_COUNT, walk)


def records_of(count: int) -> bytes:
    fed = Fed()
    for start in range(0, count, FRAMES_PER_BUFFER):
        frames = [
            send_frame(number, HeaderEncoding.JSON, bytes(1024), RequestCode.SEND_MESSAGE_V2)
            for number in range(start, start + FRAMES_PER_BUFFER)
        ]
        fed.take(b"".join(frames), FRAMES_PER_BUFFER)
    return bytes(fed.log[: fed.position])


def decoding(records: bytes, count: int) -> Work:
    def walk() -> None:
        found = tianzhou_kernel.decode_records(records, True, True)
        if found is None or len(found) != count:
            raise SystemExit("the records could not be decoded")

    return Work("decode records, 1 KiB", count, walk)


def walking(records: bytes, count: int) -> Work:
    file = records + bytes(4096)  # a log file never ends with a record

    def walk() -> None:
        stop = len(records)
        found = tianzhou_kernel.walk_records(file, 0, 0, stop, 0, 0, 100, (1000,), True, True)
        if found is None or found[1] != count:
            raise SystemExit("the records could not be walked")

    return Work("walk the log, 1 KiB", count, walk)


def works() -> list[Work]:
    fed, count = Fed(), 256
    records = records_of(count)
    return [
        sends(fed, HeaderEncoding.JSON, 1024),
        sends(fed, HeaderEncoding.ROCKETMQ, 1024),
        sends(fed, HeaderEncoding.JSON, 100),
        batches(fed),
        pulls(fed),
        decoding(records, count),
        walking(records, count),
    ]


def main() -> None:
    todo = works()
    for work in todo:
        work.walk()  # one-time initialization
        os.getsid(0)
        work.walk()
        os.getsid(0)
        for _ in range(TIMES):
            work.walk()
        os.getsid(0)
    for work in todo:
        sys.stdout.write(f"{work.message_count}\t{work.name}\n")


if __name__ == "__main__":
    main()
