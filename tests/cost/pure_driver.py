"""The broker without its kernel, walked message by message under a counter of calls.

    python -m tests.cost.pure_driver            one line of JSON: calls and bytecodes per message

Run by `pure_counting.py` with the kernel switched off. A message goes the way of a request that is
not ordinary: the frame is decoded, passes the entrance, is handled on a real store, and the answer
is encoded. "Fed" ones are ordinary: the feed takes a buffer of them, and the store settles.
Sockets and the event loop are not in it. The clock stands still, so nothing depends on time.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, cast

from tianzhou.broker.busy import SendGate
from tianzhou.broker.clients import ConsumerTable, Subscription
from tianzhou.broker.config import load_broker_config
from tianzhou.broker.dispatch import Dispatch
from tianzhou.broker.durability import Durability
from tianzhou.broker.entrance import Entrance
from tianzhou.broker.groups import GroupTable
from tianzhou.broker.handlers import pull, send
from tianzhou.broker.handlers.pull import PullParts, Waiting
from tianzhou.broker.handlers.send import SendParts
from tianzhou.broker.hotpath import HotPath
from tianzhou.broker.intake import Intake
from tianzhou.broker.longpoll import ParkedPulls
from tianzhou.broker.offsets import OffsetTable
from tianzhou.broker.stats import Stats
from tianzhou.broker.topics import TopicTable, system_topics
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given
from tianzhou.protocol import batch, kernel
from tianzhou.protocol.bodies.topics import TopicConfig
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import FLAG_RESPONSE, Command, HeaderEncoding, decode, encode
from tianzhou.protocol.headers.pull import PullMessageRequest
from tianzhou.protocol.message_id import encode_offset_id
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.outlet import NO_SOCKET
from tianzhou.store.message_store import MessageStore

TOPIC, GROUP, HOST = "orders", "readers", ("10.0.0.1", 10911)
NOW_MS = 1_700_000_000_000
QUEUE_COUNT, BATCH_SIZE, PULLED_COUNT = 4, 32, 32
FRAME_BYTES_MAX = 16 << 20
WARM_COUNT, WALK_COUNT = 400, 64

Walk = Callable[[], int]
"""Handles some requests; answers how many messages they carried."""


class Peer:
    """A connection as far as handlers and feed know it; what it is given has left."""

    peer, socket = "10.0.0.2:4711", NO_SOCKET

    def __init__(self) -> None:
        self.owed_by: Callable[[], None] | None = None

    def pay(self, _: bytes) -> None:
        self.owed_by = None

    def send_frames(self, _: bytes) -> None:
        pass


class Walked:
    """A broker as far as messages are concerned, on a store in a folder."""

    def __init__(self, folder: Path) -> None:
        pairs = {
            "storePathRootDir": folder / "store", "brokerConfigPath": folder / "b.properties",
            "mappedFileSizeCommitLog": 32 << 20, "maxHashSlotNum": 10_007, "maxIndexNum": 100_000,
            "diskMaxUsedSpaceRatio": 95,
        }  # fmt: skip
        given = [Given(key, str(value), "test") for key, value in pairs.items()]
        settings = LiveSettings(load_broker_config(environ={}, flags=given))
        config = settings.config
        self.store = store = MessageStore.open(config, clock=_now_ms, background=False)
        topics, groups = TopicTable(system_topics(config), _now_ms), GroupTable(_now_ms)
        stats = Stats(started_ms=NOW_MS)
        sends = SendParts(
            settings=settings, topics=topics, store=store, intake=Intake(store),
            durability=Durability(store, config.flush_disk_type, config.broker_role, 5000),
            gate=SendGate(), stats=stats, clock=_now_ms, store_host=HOST,
            id_prefix=encode_offset_id(HOST, 0)[:-16], topics_saved=_saved, groups=groups,
            is_ordered=lambda _: False,
        )  # fmt: skip
        pulls = PullParts(
            settings=settings, topics=topics, groups=groups, consumers=ConsumerTable[Connection](),
            offsets=OffsetTable(), store=store, parked=ParkedPulls[Connection, Waiting](),
            stats=stats, clock=_now_ms, arm=lambda _: None, found=self._found,
        )  # fmt: skip
        topics.put(
            TopicConfig(
                topic_name=TOPIC, read_queue_count=QUEUE_COUNT, write_queue_count=QUEUE_COUNT,
                perm=6,
            )
        )  # fmt: skip
        self._dispatch = Dispatch(
            {
                RequestCode.SEND_MESSAGE_V2: partial(send.send_message_v2, sends),
                RequestCode.SEND_BATCH_MESSAGE: partial(send.send_message_v2, sends),
                RequestCode.PULL_MESSAGE: partial(pull.pull_message, pulls),
            }
        )
        self._entrance = Entrance(settings, None, None)
        self._hot = HotPath(kernel.new_feed(), sends, pulls, FRAME_BYTES_MAX)
        # Handlers that answer at once ask of a connection who the peer is, and no more.
        self._connection = cast("Connection", Peer())

    def ask(self, frame: memoryview) -> bytes:
        """The answer to a request, which is a success."""
        request = decode(frame)
        answer = self._entrance.pass_on(self._connection, request, self._dispatch)
        if not isinstance(answer, Command) or answer.code:
            raise SystemExit(f"request {request.code} was answered with {answer}")
        answer.opaque, answer.encoding, answer.flag = (
            request.opaque,
            request.encoding,
            FLAG_RESPONSE,
        )
        return encode(answer)

    def feed(self, buffer: memoryview) -> None:
        """Let the feed take a buffer, all of it."""
        found = self._hot.take(self._connection, buffer, 0)
        self._hot.settle()
        if found != (len(buffer), len(buffer)):
            raise SystemExit(f"the feed has stopped at {found}")

    def _found(
        self, header: PullMessageRequest, subscription: Subscription, next_offset: int
    ) -> None:
        self._hot.pull_found(header, subscription, next_offset)


def _now_ms() -> int:
    return NOW_MS


async def _saved() -> bool:
    return True


def properties_of(number: int) -> str:
    return f"KEYS\x01k{number:016X}\x02UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02TAGS\x01red\x02"


def send_frame(number: int, encoding: HeaderEncoding, body: bytes, code: int) -> memoryview:
    fields = {
        "a": "producers", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % QUEUE_COUNT),
        "f": "0", "g": str(NOW_MS), "h": "0", "i": properties_of(number), "j": "0", "k": "false",
        "l": "16", "m": "true" if code == RequestCode.SEND_BATCH_MESSAGE else "false",
    }  # fmt: skip
    request = Command(
        code=code, opaque=number, language=0, version=500, ext_fields=fields, body=body,
        encoding=encoding,
    )  # fmt: skip
    return memoryview(bytearray(encode(request)))


def pull_frame(queue_offset: int) -> memoryview:
    fields = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "queueOffset": str(queue_offset),
        "maxMsgNums": str(PULLED_COUNT), "sysFlag": "4", "commitOffset": "0",
        "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        "expressionType": "TAG",
    }  # fmt: skip
    request = Command(code=RequestCode.PULL_MESSAGE, opaque=7, language=0, ext_fields=fields)
    return memoryview(bytearray(encode(request)))


def walks(broker: Walked) -> dict[str, Walk]:
    """What is counted, by name."""
    plain, batched = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
    items = [
        batch.BatchItem(body=bytes(100), properties_text=properties_of(number))
        for number in range(BATCH_SIZE)
    ]

    def sending(encoding: HeaderEncoding) -> Walk:
        frames = [send_frame(n, encoding, bytes(1024), plain) for n in range(WALK_COUNT)]
        return lambda: len([broker.ask(frame) for frame in frames])

    batches = [
        send_frame(n, HeaderEncoding.JSON, batch.encode(items), batched) for n in range(QUEUE_COUNT)
    ]
    pulls = [pull_frame(0), pull_frame(1)]
    # The first pull makes the group, and once that is known the next one shows what it may read.
    for _ in range(2):
        broker.feed(memoryview(b""))
        broker.ask(pulls[0])

    def feeding(frames: list[memoryview], each_count: int) -> Walk:
        buffer = memoryview(bytearray(b"".join(frames)))

        def walk() -> int:
            broker.feed(buffer)
            return each_count * len(frames)

        return walk

    def fed_sends(encoding: HeaderEncoding) -> Walk:
        return feeding([send_frame(n, encoding, bytes(1024), plain) for n in range(WALK_COUNT)], 1)

    return {
        "send 1 KiB, JSON": sending(HeaderEncoding.JSON),
        "send 1 KiB, binary": sending(HeaderEncoding.ROCKETMQ),
        "batch 32 x 100 B": lambda: BATCH_SIZE * len([broker.ask(frame) for frame in batches]),
        "fed send 1 KiB, JSON": fed_sends(HeaderEncoding.JSON),
        "fed send 1 KiB, binary": fed_sends(HeaderEncoding.ROCKETMQ),
        "fed batch 32 x 100 B": feeding(batches, BATCH_SIZE),
        "pull 32 x 1 KiB": lambda: PULLED_COUNT * len([broker.ask(frame) for frame in pulls]),
        "fed pull 32 x 1 KiB": feeding(pulls, PULLED_COUNT),
    }


# -- counting --------------------------------------------------------------------------------------


def count_calls(walk: Walk) -> float:
    """Calls of functions, Python's and C's, per message."""
    calls = 0

    def note(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    messages = walk()
    sys.setprofile(None)
    return round(calls / messages, 2)


def count_bytecodes(walk: Walk) -> float:
    """Instructions of the interpreter per message."""
    bytecodes = 0

    def note(frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 - it names itself
        nonlocal bytecodes
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        bytecodes += event == "opcode"
        return note

    sys.settrace(note)
    messages = walk()
    sys.settrace(None)
    return round(bytecodes / messages, 2)


async def count_all() -> dict[str, dict[str, float]]:
    counted: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="cost-") as folder:
        broker = Walked(Path(folder))
        for number in range(WARM_COUNT):
            frame = send_frame(
                number, HeaderEncoding.JSON, bytes(1024), RequestCode.SEND_MESSAGE_V2
            )
            broker.ask(frame)
        for name, walk in walks(broker).items():
            walk()  # what is remembered is remembered now
            counted[name] = {"calls": count_calls(walk), "bytecodes": count_bytecodes(walk)}
        broker.store.close()
    return counted


def main() -> None:
    if kernel.WHY_PURE is None:
        raise SystemExit("the kernel must be switched off: TIANZHOU_PURE=1")
    sys.stdout.write(json.dumps(asyncio.run(count_all())) + "\n")


if __name__ == "__main__":
    main()
