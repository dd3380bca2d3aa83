"""Fast path and handlers do the same: responses, log, queues and index are equal to the byte.

Two brokers get the same bytes, one with the fast path and one without: sends of every form, usual
and unusual, split anywhere, into files so small that all of them roll; between them topics and
settings change. Nothing is masked: both have the same clock, address and peer. It needs the
compiled kernel, which alone has a fast path.
"""

import asyncio
import errno
import math
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.support.framing import split
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import delete_topic

from tianzhou.broker.config import load_broker_config
from tianzhou.broker.handlers import pull, send
from tianzhou.broker.handlers.deps import Deps, WaitingPull
from tianzhou.broker.longpoll.parked_pulls import ParkedPulls
from tianzhou.broker.requests.fast_path import FastPath
from tianzhou.broker.statistics.counters import Stats
from tianzhou.broker.storing.durability import Durability, Replicas
from tianzhou.broker.storing.overload import SendGate
from tianzhou.broker.storing.redirects import MessageWriter
from tianzhou.broker.tables.clients import (
    Client,
    ConsumerHeartbeat,
    ConsumerTable,
    Subscription,
    make_subscription,
)
from tianzhou.broker.tables.groups import GroupTable
from tianzhou.broker.tables.offsets import OffsetTable
from tianzhou.broker.tables.topics import TopicTable, system_topics
from tianzhou.config.live import LiveSettings
from tianzhou.config.properties import Property
from tianzhou.config.settings import Given
from tianzhou.protocol import kernel
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.topics import MULTI_TAG, TopicConfig
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import FLAG_ONEWAY, Command, HeaderEncoding, decode, encode
from tianzhou.protocol.headers.pull import PullMessageRequest
from tianzhou.protocol.records import batch
from tianzhou.protocol.records.message_id import encode_offset_id
from tianzhou.remoting.connection import Connection, Handler
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.shared_state import SharedState
from tianzhou.store.config import ENTRY_BYTES, FlushDiskType
from tianzhou.store.consume_queue import Entry
from tianzhou.store.message_store import Draft, MessageStore
from tianzhou.store.reading import StoreReader

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(kernel.WHY_PURE is not None, reason=f"no kernel: {kernel.WHY_PURE}"),
]


@pytest.fixture(autouse=True)
def _all_in_one_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of a loop iteration must not depend on the speed of the machine."""
    monkeypatch.setattr("tianzhou.remoting.connection._SHARE_S", math.inf)


STORE_HOST = ("10.1.2.3", 10911)
NOON_MS = 1_700_000_000_000
ROOT = Path("/store")
FRAME_MAX_BYTES = 40_000

PAIRS: dict[str, object] = {
    "storePathRootDir": ROOT,
    "brokerConfigPath": ROOT / "b.properties",
    "mappedFileSizeCommitLog": 32_768,
    "mappedFileSizeConsumeQueue": 20 * 23,
    "maxHashSlotNum": 17,
    "maxIndexNum": 60,
    "maxMessageSize": 9000,
    "diskMaxUsedSpaceRatio": 95,
    "diskSpaceCleanForciblyRatio": 99,
    "diskSpaceWarningLevelRatio": 100,
}
"""Files so small that everything rolls after a few messages."""


class Transport(asyncio.Transport):
    """Records what is written; returns the address of the peer."""

    def __init__(self, peer: tuple[str, int]) -> None:
        super().__init__({"peername": peer, "sockname": STORE_HOST})
        self.written = bytearray()

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


@dataclass
class Now:
    ms: int = NOON_MS

    def __call__(self) -> int:
        return self.ms


@dataclass
class Side:
    """The sending part of a broker, with or without the fast path."""

    with_feed: bool
    clock: Now
    peer: tuple[str, int]
    pairs: dict[str, object] = field(default_factory=dict[str, object])
    replicas: Replicas | None = None

    def __post_init__(self) -> None:
        given = [Given(key, str(value), "test") for key, value in (PAIRS | self.pairs).items()]
        self.settings = LiveSettings(load_broker_config(environ={}, flags=given))
        config = self.settings.config
        self.disk = SimulatedDisk()
        self.store = MessageStore.open(config, disk=self.disk, clock=self.clock, background=False)
        self.topics = TopicTable(system_topics(config), self.clock)
        self.stats = Stats(started_ms=self.clock())
        unused: Any = None
        self.deps = Deps(
            settings=self.settings, clock=self.clock, steady=self.clock, address=unused,
            replication=unused, replication_status=unused, change_role=unused,
            store_host=STORE_HOST, id_prefix=encode_offset_id(STORE_HOST, 0)[:-16],
            topics=self.topics, groups=GroupTable(self.clock), offsets=OffsetTable(), modes=unused,
            consumers=ConsumerTable[Connection](), producers=unused, client_ids=unused,
            limits=unused, stats=self.stats, history=unused, saved=_saved, store=self.store,
            writer=MessageWriter(self.store), gate=SendGate(), scheduled=unused, halves=unused,
            durability=Durability(self.store, self.settings, self.replicas),
            pops=unused, send_backs=unused, client=unused, polls=unused,
            arm=lambda: None,
            parked=ParkedPulls[Connection, WaitingPull](), may_consume=unused,
            on_messages=self._pull_found, on_reset=unused, on_settings=unused, acl_files=None,
        )  # fmt: skip
        self.fed_count = self.pull_count = 0
        self.feed = feed = kernel.new_feed() if self.with_feed else None
        self.hot = FastPath(feed, self.deps, FRAME_MAX_BYTES) if feed is not None else None
        self._board: SharedState[Connection] = SharedState(
            Limits(frame_bytes=FRAME_MAX_BYTES, receive_bytes=4096), serves=True
        )
        self._board.start()
        self.connect()

    def _pull_found(
        self, header: PullMessageRequest, subscription: Subscription, next_offset: int
    ) -> None:
        if self.hot is not None:
            self.hot.pull_found(header, subscription, next_offset)

    def connect(self) -> None:
        self.connection, self.transport = self.another()

    def another(self) -> tuple[Connection, Transport]:
        """One more connection of the same peer."""
        transport = Transport(self.peer)
        connection = Connection(
            self._board, self._handler(), feed=self.hot.serve if self.hot is not None else None
        )
        connection.connection_made(transport)
        return connection, transport

    def _handler(self) -> Handler:
        handlers = {
            RequestCode.SEND_MESSAGE: send.send_message,
            RequestCode.SEND_MESSAGE_V2: send.send_message_v2,
            RequestCode.SEND_BATCH_MESSAGE: send.send_message_v2,
        }

        def handle(connection: Connection, request: Command) -> object:
            self.fed_count -= 1
            if request.code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
                self.pull_count -= 1
                return pull.pull_message(self.deps, connection, request)
            if request.code not in handlers:
                return Command(code=0, body=request.body)
            return handlers[RequestCode(request.code)](self.deps, connection, request)

        return handle  # type: ignore[return-value]  # what handlers return, by way of a table

    async def arrive(self, data: bytes, pieces: list[int]) -> None:
        for start, stop in zip([0, *pieces], [*pieces, len(data)], strict=True):
            piece = data[start:stop]
            while piece:
                buffer = self.connection.get_buffer(-1)
                size = min(len(piece), len(buffer))
                buffer[:size] = piece[:size]
                self.connection.buffer_updated(size)
                buffer[:size] = bytes(size)
                piece = piece[size:]
        for _ in range(1000):
            await asyncio.sleep(0)
            if not (self.deps.durability.waiting_count or self._board.tasks):
                return
        raise AssertionError(f"{self.deps.durability.waiting_count} sends still wait")

    def subscribe(self, group: str, topic: str, expression: str, version: int) -> None:
        """A consumer sends the subscription of its group."""
        client = Client("a client", 0, 0, self.clock())
        wants = (make_subscription(topic, expression, "TAG", version),)
        self.deps.consumers.heartbeat(
            self.connection,
            client,
            ConsumerHeartbeat(
                group, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET", wants
            ),
        )

    def update(self, key: str, value: str) -> None:
        self.settings.activate(self.settings.prepare([Property(key, value, 1)], "test"))
        self.store.apply_config(self.settings.config)

    def entries(self) -> dict[tuple[str, int], list[Entry]]:
        """The entries of all queues, in memory or in files."""
        return {
            (queue.topic, queue.queue_id): [
                entry
                for file in queue.segments.files
                for entry in queue.raw_entries(file.first // ENTRY_BYTES, file.size_bytes)
            ]
            for queue in self.store.queues.all()
        }

    def files(self, *names: str) -> dict[str, bytes]:
        contents: dict[str, bytes] = {}
        folders = [ROOT / name for name in names]
        while folders:
            folder = folders.pop()
            for name in self.disk.names(folder):
                path = folder / name
                if self.disk.is_directory(path):
                    folders.append(path)
                else:
                    handle = self.disk.open(path, writable=False)
                    contents[str(path)] = handle.read(0, handle.size_bytes())
                    handle.close()
        return contents

    def close(self) -> None:
        self.connection.connection_lost(None)
        self.store.close()


async def _saved() -> bool:
    return True


# -- what is sent ----------------------------------------------------------------------------------

TOPICS = ("orders", "payments", "multi", "read-only", "%RETRY%g", "gone", "x" * 127, "TBW102")
TEXTS = ("", "a", "b c", "Über 天舟 🚢", "k" * 90, "\x01", '{"q":"\\\\"}', " ", "true", "0")
GROUPS = ("g", "g", "readers", "forbidden")
ORDINARY_NAMES = ("TAGS", "KEYS", "UNIQ_KEY", "WAIT", "colour", "größe", "PGROUP", "INSTANCE_ID")
ODD_NAMES = ("CLUSTER", "DELAY", "TRAN_MSG", "MSG_REGION")
LONG_NAMES = (
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag",
    "bornTimestamp", "flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes",
    "batch",
)  # fmt: skip


ODD_BYTES = (
    (b"\\u0001", b"\\u0001\\u0001"),
    (b"\\u0002", b"\\\\u0002"),
    (b"\\u0002", b"\\u0020"),
    (b'"i":', b'"j":"0","i":'),
    (b'"g":"', b'"g":" '),
    (b'"opaque":', b'"opaque": '),
)
"""Text of a JSON header, and its replacements."""


class Sender:
    """Makes frames, most of them ordinary."""

    def __init__(self, seed: int, pull_percent: int, repeat_percent: int = 0) -> None:
        self.random = random.Random(seed)
        self.opaque = 0
        self.pull_percent = pull_percent
        self.repeat_percent = repeat_percent
        self.before: list[Command] = []

    def chance(self, percent: int) -> bool:
        return self.random.randrange(100) < percent

    def frame(self) -> bytes:
        if self.chance(self.pull_percent):
            return self.pull_frame()
        if self.before and self.chance(self.repeat_percent):
            return self.repeated_frame()
        self.opaque += 1
        choose = self.random.choice
        code = choose((10, 310, 310, 310, 320))
        fields = self.fields(code)
        body = self.batch_body() if code == 320 else self.random.randbytes(choose((0, 5, 300, 900)))
        if self.chance(3):
            body = self.random.randbytes(choose((8999, 9000, 9001, 12_000)))
        command = Command(
            code=code if not self.chance(5) else choose((34, 11, 9999)),
            opaque=self.opaque,
            flag=FLAG_ONEWAY if self.chance(8) else 0,
            ext_fields=fields,
            body=body,
            encoding=choose((HeaderEncoding.JSON, HeaderEncoding.ROCKETMQ)),
            remark=choose((None, None, None, "a remark")),
        )
        if len(self.before) < 12:
            self.before.append(command)
        return encode(command)

    def repeated_frame(self) -> bytes:
        """Another message of the same producer; at times with unusual bytes."""
        choose = self.random.choice
        command = choose(self.before)
        self.opaque += 1
        command.opaque = self.opaque if self.chance(90) else choose((0, -7, 2**31 - 1, 10**9))
        fields = dict(command.fields)
        for born, text in (("g", "i"), ("bornTimestamp", "properties")):
            if born in fields and self.chance(50):
                fields[born] = choose(("1700000000001", "1700000000777", "17", "0", "-5", "017"))
            if text in fields:
                fields[text] = self.properties_text()
        command.ext_fields = fields
        if command.code != RequestCode.SEND_BATCH_MESSAGE:
            command.body = self.random.randbytes(choose((0, 5, 300)))
        frame = encode(command)
        if command.encoding is HeaderEncoding.JSON and self.chance(10):
            frame = with_header(frame, *choose(ODD_BYTES))
        return frame

    def pull_frame(self) -> bytes:
        self.opaque += 1
        choose = self.random.choice
        fields = {
            "consumerGroup": choose(GROUPS),
            "topic": choose(TOPICS[:2]) if self.chance(80) else choose(TOPICS),
            "queueId": choose(("0", "0", "0", "1", "2", "3", "9")),
            "queueOffset": str(self.random.randrange(choose((6, 25, 70)))),
            "maxMsgNums": choose(("1", "4", "32", "1000", "0")),
            "sysFlag": choose(("0", "1", "1", "4", "4", "5", "5", "12")),
            "commitOffset": str(self.random.randrange(40)),
            "suspendTimeoutMillis": "0",
            "subVersion": choose(("0", "1", "2", "7")),
            "subscription": choose(("*", "*", "*", "", "a", " a || b c ||k", "||", "Über 天舟 🚢")),
            "expressionType": choose(("TAG", "TAG", "", "SQL92")) if self.chance(20) else "TAG",
        }
        if self.chance(10):
            del fields[choose(list(fields))]
        if self.chance(20):
            fields[choose(("maxMsgBytes", "requestSource", "lo", "bname", "?"))] = choose("0x")
        return encode(
            Command(
                code=choose((RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)),
                opaque=self.opaque,
                flag=FLAG_ONEWAY if self.chance(3) else 0,
                ext_fields=fields,
                encoding=choose((HeaderEncoding.JSON, HeaderEncoding.ROCKETMQ)),
            )
        )

    def fields(self, code: int) -> dict[str, str]:
        choose = self.random.choice
        values = [
            "producers",
            choose(TOPICS[:2]) if self.chance(75) else choose(TOPICS),
            "TBW102",
            choose(("4", "8", "1")),
            choose(("0", "0", "1", "2", "3"))
            if self.chance(92)
            else choose(("-1", "9", "01", "x")),
            choose(("0", "0", "0", "1", "16", "768", "257", "64"))
            if self.chance(95)
            else choose(("4", "8", "12", "2147483648", "1.0")),
            choose(("1700000000123", "0", "-5", "+7")) if self.chance(30) else "1700000000001",
            choose(("0", "7", "-1")),
            self.properties_text(),
            choose(("0", "0", "3", "16")),
            choose(("false", "true", "0")) if self.chance(10) else "false",
            choose(("16", "", "five")) if self.chance(5) else "16",
            choose(("true", "1", "FALSE")) if self.chance(5) else "false",
        ]
        names = LONG_NAMES if code == RequestCode.SEND_MESSAGE else tuple("abcdefghijklm")
        fields = dict(zip(names, values, strict=True))
        if self.chance(40):
            fields["n"] = "broker-a"
            fields["bname"] = "broker-a"
        if self.chance(10):
            fields[choose(("lo", "nsd", "oway", "unheard of"))] = choose(("true", "false", "yes"))
        if self.chance(10):
            del fields[choose(list(fields))]
        return fields

    def properties_text(self) -> str:
        deps: list[str] = []
        count = self.random.choice((0, 2, 3, 3, 4, 6))
        names = self.random.sample(ORDINARY_NAMES, count)
        if self.chance(15):
            names = self.random.choices(ORDINARY_NAMES + ODD_NAMES, k=count)
        for name in names:
            value = self.random.choice(TEXTS)
            if name in ("KEYS", "UNIQ_KEY") and self.chance(80):
                value = " ".join(f"k{self.random.randrange(50)}" for _ in range(2))
            deps.append(f"{name}\x01{value}" if self.chance(97) else name)
        text = "\x02".join(deps) + self.random.choice(("", "\x02"))
        return text if self.chance(98) else text + f"big\x01{'v' * 32_000}\x02"

    def batch_body(self) -> bytes:
        items = [
            batch.BatchItem(
                self.random.randbytes(self.random.choice((0, 10, 100))), self.properties_text(), n
            )
            for n in range(self.random.choice((1, 2, 3, 8, 25)))
        ]
        if sum(len(item.properties_text) for item in items) > 20_000:
            items = items[:1]
        whole = batch.encode(items)
        if self.chance(5):
            whole = whole[: self.random.randrange(len(whole))]
        if self.chance(5):
            spoilt = bytearray(whole)
            if spoilt:
                spoilt[self.random.randrange(len(spoilt))] ^= 1 << self.random.randrange(8)
            whole = bytes(spoilt)
        return whole

    def pieces(self, size: int) -> list[int]:
        count = self.random.choice((0, 0, 1, 3))
        return sorted(self.random.randrange(size + 1) for _ in range(count))


def with_header(frame: bytes, old: bytes, new: bytes) -> bytes:
    """A frame whose JSON header has other bytes somewhere."""
    length = int.from_bytes(frame[5:8], "big")
    header = frame[8 : 8 + length].replace(old, new, 1)
    rest = len(header).to_bytes(4, "big") + header + frame[8 + length :]
    return len(rest).to_bytes(4, "big") + rest


def prepare(side: Side) -> None:
    for name, perm in (("orders", 6), ("payments", 6), ("multi", 6), ("read-only", 4), ("gone", 6)):
        side.topics.put(
            TopicConfig(
                topic_name=name,
                read_queue_count=4,
                write_queue_count=3,
                perm=perm,
                filter_type=MULTI_TAG if name == "multi" else "SINGLE_TAG",
            )
        )


def change(sender: Sender, sides: list[Side]) -> None:
    """Apply a change other than a send to both brokers."""
    what = sender.random.randrange(8)
    number = sender.random.randrange(1, 9)
    for side in sides:
        if what == 0:
            side.update("regionId", f'region "{number}"')
        elif what == 1:
            side.update("traceOn", "true" if number % 2 else "false")
        elif what == 2:
            side.topics.put(
                TopicConfig(
                    topic_name="payments",
                    read_queue_count=4,
                    write_queue_count=4,
                    perm=6 if number % 5 else 4,
                )
            )
        elif what == 3:
            side.topics.remove("gone")
            delete_topic(side.store, "gone")
        elif what == 4:
            side.update("brokerPermission", "6" if number % 4 else "4")
        elif what == 5:
            side.subscribe("g", "orders", "*" if number % 2 else "a || k", number)
        elif what == 6:
            side.deps.groups.put(
                SubscriptionGroupConfig(group_name="forbidden", consume_enable=number % 2 == 0)
            )
            side.deps.groups.put(
                SubscriptionGroupConfig(
                    group_name="g", broker_id=number % 3, which_broker_when_consume_slowly=number
                )
            )
        else:
            side.clock.ms += number * 700


def compare(fed: Side, plain: Side) -> None:
    answers = [bytes(side.transport.written) for side in (fed, plain)]
    if plain.deps.durability.may_wait:
        # Held responses are sent in blocks or one by one.
        answers = [b"".join(sorted(frames_of(each))) for each in answers]
    assert answers[0] == answers[1]
    assert fed.store.end_log_offset == plain.store.end_log_offset
    assert fed.stats.put == plain.stats.put
    assert fed.stats.by_queue == plain.stats.by_queue
    assert fed.stats.by_group == plain.stats.by_group
    assert fed.stats.pulls_found == plain.stats.pulls_found
    assert fed.deps.offsets.by_key == plain.deps.offsets.by_key
    assert fed.entries() == plain.entries()
    assert fed.files("commitlog", "index") == plain.files("commitlog", "index")


def frames_of(stream: bytes) -> list[bytes]:
    return [stream[start:stop] for start, stop in split(stream)[0]]


def run(
    seed: int,
    peer: tuple[str, int],
    pairs: dict[str, object],
    *,
    pull_percent: int = 10,
    repeat_percent: int = 0,
    replicas: Replicas | None = None,
) -> tuple[int, int]:
    return asyncio.run(_run(Sender(seed, pull_percent, repeat_percent), peer, pairs, replicas))


async def _run(
    sender: Sender, peer: tuple[str, int], pairs: dict[str, object], replicas: Replicas | None
) -> tuple[int, int]:
    """Returns how many requests, and how many pulls among them, only the fast path served."""
    sides = [Side(with_feed, Now(), peer, pairs, replicas) for with_feed in (True, False)]
    for side in sides:
        prepare(side)
        side.subscribe("g", "payments", "b c", 1)
    for step in range(100):
        stream = b"".join(sender.frame() for _ in range(sender.random.choice((1, 2, 5, 12))))
        pieces = sender.pieces(len(stream))
        for side in sides:
            random.seed(step)  # a send without a queue gets a random one
            await side.arrive(stream, pieces)
        if sender.chance(12):
            change(sender, sides)
        if step % 10 == 9:
            compare(*sides)
        if sides[0].connection.closed or sides[1].connection.closed:
            compare(*sides)
            for side in sides:
                assert side.connection.closed
                side.connect()
    compare(*sides)
    for side in sides:
        side.close()
    fed, plain = sides
    everything = ("commitlog", "consumequeue", "index")
    assert fed.files(*everything) == plain.files(*everything)
    return fed.fed_count - plain.fed_count, fed.pull_count - plain.pull_count


PEERS = [("10.9.8.7", 40_001), ("2001:db8::7", 40_002)]


SETTINGS: dict[int, dict[str, object]] = {
    3: {"flushDiskType": "SYNC_FLUSH"},
    7: {"messageIndexEnable": "false"},
    8: {"flushDiskType": "SYNC_FLUSH"},
}
LARGER: dict[str, object] = {
    "mappedFileSizeCommitLog": 200_000,
    "mappedFileSizeConsumeQueue": 20 * 150,
    "maxTransferCountOnMessageInMemory": 7,
    "maxTransferBytesOnMessageInMemory": 3000,
}
"""Files large enough for most pulls."""
FAR: dict[str, object] = {
    "accessMessageInMemoryMaxRatio": 0,
    "slaveReadEnable": "true",
    "maxTransferCountOnMessageInDisk": 2,
    "maxTransferBytesOnMessageInDisk": 1000,
}


@pytest.mark.parametrize("seed", range(10))
def test_fast_path_equals_the_handlers(seed: int) -> None:
    fed_count, _ = run(seed, PEERS[seed % 2], SETTINGS.get(seed, {}))
    assert fed_count > 20, "the feed took next to nothing, so nothing was compared"


class FastReplicas:
    """Slaves that have a message as soon as it is stored."""

    replicated_log_offset = 1 << 62

    def are_in_reach(self, end_log_offset: int) -> bool:
        return True


@pytest.mark.parametrize("replicas", [None, FastReplicas()])
@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_sync_master_answers_as_the_handlers(flush: str, replicas: Replicas | None) -> None:
    """With slaves and without: then no send ends with SEND_OK, unless it does not wait."""
    pairs: dict[str, object] = {"brokerRole": "SYNC_MASTER", "flushDiskType": flush}
    fed_count, _ = run(11, PEERS[0], LARGER | pairs, repeat_percent=40, replicas=replicas)
    assert fed_count > 20, "the feed took next to nothing, so nothing was compared"


@pytest.mark.parametrize("seed", range(20, 28))
def test_pulls_with_messages_equal_the_handlers(seed: int) -> None:
    pairs = LARGER | ({"flushDiskType": "SYNC_FLUSH"} if seed == 27 else {})
    _, fed_pull_count = run(seed, PEERS[0], pairs, pull_percent=50)
    assert fed_pull_count > 2, "the feed took next to no pull"


@pytest.mark.parametrize("seed", range(60, 64))
def test_suggested_brokers_equal_those_of_the_handlers(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With slaveReadEnable, about half of the messages being too old to be in memory."""
    monkeypatch.setattr(StoreReader, "memory_bytes", 20_000)
    pairs = LARGER | {"slaveReadEnable": "true"}
    _, fed_pull_count = run(seed, PEERS[0], pairs, pull_percent=50)
    assert fed_pull_count > 2, "the feed took next to no pull"


@pytest.mark.parametrize("seed", range(60, 64))
def test_pulls_of_messages_far_from_the_end_equal_the_handlers(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By RocketMQ's rule none is in memory; both look, and find them there."""
    monkeypatch.setattr("tianzhou.broker.storing.disk_prefetch.HOT_BYTES", 0)
    pairs = LARGER | FAR
    _, fed_pull_count = run(seed, PEERS[0], pairs, pull_percent=50)
    assert fed_pull_count > 2, "the feed took next to no pull"


@pytest.mark.parametrize("seed", range(40, 48))
def test_repeated_sends_equal_the_handlers(seed: int) -> None:
    fed_count, _ = run(seed, PEERS[seed % 2], SETTINGS.get(seed - 40, LARGER), repeat_percent=85)
    assert fed_count > 20, "the feed took next to nothing, so nothing was compared"


# -- turns -----------------------------------------------------------------------------------------


def send_frame(opaque: int, body: bytes, flag: int = 0, **fields: str) -> bytes:
    values = {
        "a": "producers", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1",
        "h": "0", "i": "KEYS\x01k\x02", "j": "0", "k": "false", "l": "16", "m": "false",
    }  # fmt: skip
    command = Command(
        code=RequestCode.SEND_MESSAGE_V2, opaque=opaque, flag=flag, ext_fields=values | fields,
        body=body,
    )  # fmt: skip
    return encode(command)


def pull_frame(opaque: int, queue_id: int) -> bytes:
    fields = {
        "consumerGroup": "g", "topic": "orders", "queueId": str(queue_id), "queueOffset": "0",
        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subVersion": "0", "subscription": "*", "expressionType": "TAG",
    }  # fmt: skip
    return encode(Command(code=RequestCode.PULL_MESSAGE, opaque=opaque, ext_fields=fields))


def feed_bytes(connection: Connection, data: bytes) -> None:
    """Receive bytes within the current loop iteration."""
    buffer = connection.get_buffer(-1)
    buffer[: len(data)] = data
    connection.buffer_updated(len(data))
    buffer[: len(data)] = bytes(len(data))


async def fed_side(pairs: dict[str, object] | None = None) -> Side:
    """A broker whose fast path has two queues, and may answer pulls from both."""
    side = Side(True, Now(), PEERS[0], LARGER | (pairs or {}))
    prepare(side)
    for queue_id in (0, 1):
        await side.arrive(send_frame(1, b"first", e=str(queue_id)), [])
        await side.arrive(pull_frame(2, queue_id), [])
    side.transport.written.clear()
    return side


def responses(transport: Transport) -> list[tuple[int, int]]:
    """Opaque and code of each response."""
    answers = [decode(frame) for frame in frames_of(bytes(transport.written))]
    return [(answer.opaque, answer.code) for answer in answers]


async def test_sends_of_all_connections_in_one_iteration_are_written_together() -> None:
    side = await fed_side()
    others = [side.another() for _ in range(3)]
    before, handled_count = side.disk.calls["write"], side.fed_count
    for number, (connection, transport) in enumerate(others):
        feed_bytes(connection, send_frame(number, b"one") + send_frame(10 + number, b"two", e="1"))
        assert not transport.written, "an answer left before its record was written"
    await asyncio.sleep(0)
    assert side.disk.calls["write"] == before + 1
    assert side.fed_count == handled_count, "the handlers were asked"
    for number, (connection, transport) in enumerate(others):
        assert responses(transport) == [(number, 0), (10 + number, 0)]
        connection.connection_lost(None)
    assert side.store.max_offset("orders", 0) == 4
    side.close()


async def test_handler_sends_are_stored_after_fast_path_sends_of_the_iteration() -> None:
    side = await fed_side()
    feed_bytes(side.connection, send_frame(5, b"fed"))
    # A handler stores this one: its topic is new to the fast path.
    other, transport = side.another()
    feed_bytes(other, send_frame(6, b"handled", b="payments"))
    assert responses(side.transport) == [(5, 0)]
    assert responses(transport) == [(6, 0)]
    feed_bytes(side.connection, send_frame(7, b"fed again"))
    appended = side.deps.store.append(
        Draft("payments", 0, b"from a timer", "", NOON_MS, STORE_HOST, STORE_HOST)
    )
    assert responses(side.transport) == [(5, 0), (7, 0)]
    assert appended.queue_offset == 1
    await asyncio.sleep(0)
    read = side.store.read("orders", 0, 0, 32)
    assert [bytes(record).count(b"fed") for record in read.records] == [0, 1, 1]
    other.connection_lost(None)
    side.close()


async def test_pull_returns_messages_sent_earlier_in_the_same_iteration() -> None:
    side = await fed_side()
    handled_count = side.fed_count
    feed_bytes(side.connection, send_frame(5, b"x") + pull_frame(6, 1) + pull_frame(7, 0))
    await asyncio.sleep(0)
    assert side.fed_count == handled_count, "the handlers were asked"
    answers = [decode(frame) for frame in frames_of(bytes(side.transport.written))]
    assert [(answer.opaque, answer.fields.get("maxOffset")) for answer in answers] == [
        (5, None), (6, "1"), (7, "2"),
    ]  # fmt: skip
    side.close()


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_failed_write_fails_all_sends_of_the_iteration(flush: str) -> None:
    side = await fed_side({"flushDiskType": flush})
    others = [side.another() for _ in range(2)]
    failures, position = side.stats.put_failures, side.store.end_log_offset
    side.disk.fail("write", errno.EIO, "commitlog")
    feed_bytes(others[0][0], pull_frame(3, 1))
    feed_bytes(others[0][0], send_frame(4, b"x") + send_frame(5, b"x", FLAG_ONEWAY))
    feed_bytes(others[1][0], send_frame(6, b"x"))
    await asyncio.sleep(0)
    unavailable = ResponseCode.SERVICE_NOT_AVAILABLE
    assert responses(others[0][1]) == [(3, 0), (4, unavailable)]
    assert responses(others[1][1]) == [(6, unavailable)]
    assert "input/output" in (decode(bytes(others[1][1].written)).remark or "")
    assert side.stats.put_failures == failures + 3
    assert side.store.end_log_offset == position
    assert side.store.max_offset("orders", 0) == 1
    # The disk works again: nothing is left of the failed sends.
    await side.arrive(send_frame(7, b"later") + send_frame(8, b"and later"), [])
    assert sorted(responses(side.transport)) == [(7, 0), (8, 0)]
    assert side.store.max_offset("orders", 0) == 3
    for connection, _ in others:
        connection.connection_lost(None)
    side.close()


async def test_role_that_changes_within_an_iteration_applies_to_its_sends() -> None:
    """They are written under the new role, which has no slave."""
    side = await fed_side()
    others = [side.another() for _ in range(2)]
    for number, (connection, _) in enumerate(others):
        feed_bytes(connection, send_frame(number, b"x"))
    assert not any(transport.written for _, transport in others)
    given = [
        Given(key, str(value), "test")
        for key, value in (PAIRS | LARGER | {"brokerRole": "SYNC_MASTER"}).items()
    ]
    side.settings.config = load_broker_config(environ={}, flags=given).config
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    codes = [responses(transport) for _, transport in others]
    assert codes == [[(number, ResponseCode.SLAVE_NOT_AVAILABLE)] for number in range(2)]
    side.close()


async def test_slave_stores_nothing_by_the_fast_path() -> None:
    side = await fed_side()
    given = [
        Given(key, str(value), "test")
        for key, value in (PAIRS | LARGER | {"brokerRole": "SLAVE", "brokerId": 1}).items()
    ]
    side.settings.config = load_broker_config(environ={}, flags=given).config
    handled_count = side.fed_count
    await side.arrive(send_frame(1, b"x") + send_frame(2, b"x"), [])
    assert side.fed_count == handled_count - 2, "the handlers decide"
    side.close()


async def test_large_and_many_messages_are_stored_in_several_writes() -> None:
    pairs: dict[str, object] = {
        "mappedFileSizeCommitLog": 4_000_000,
        "mappedFileSizeConsumeQueue": 20 * 5000,
    }
    side = await fed_side(pairs)
    count = 400
    for number in range(count):
        feed_bytes(side.connection, send_frame(number, bytes(2000)))
    await asyncio.sleep(0)
    assert responses(side.transport) == [(number, 0) for number in range(count)]
    assert side.store.max_offset("orders", 0) == 1 + count
    side.close()


def break_fast_path(feed: "kernel.Feed | None") -> None:
    """Make the fast path fail in the middle of a send."""
    assert feed is not None
    # A grant of more memory than exists.
    feed.grant_index(memoryview(bytearray(50)), 17, 60, 60)


async def test_failure_of_the_fast_path_fails_earlier_sends_of_the_iteration() -> None:
    side = await fed_side()
    other, transport = side.another()
    feed_bytes(other, send_frame(4, b"x"))
    break_fast_path(side.feed)
    feed_bytes(side.connection, send_frame(5, b"x"))
    await asyncio.sleep(0)
    assert responses(transport) == [(4, ResponseCode.SERVICE_NOT_AVAILABLE)]
    assert responses(side.transport) == [(5, 0)], "the handlers store what the feed failed at"
    assert side.store.max_offset("orders", 0) == 2
    other.connection_lost(None)
    side.close()


async def test_handlers_take_over_after_a_failure_of_the_fast_path(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fed, plain = (Side(with_feed, Now(), PEERS[0]) for with_feed in (True, False))
    sender = Sender(1, pull_percent=0)
    send_fields = sender.fields(RequestCode.SEND_MESSAGE_V2) | {
        "b": "orders", "e": "0", "f": "0", "g": "1", "i": "KEYS\x01k\x02",
    }  # fmt: skip
    frame = encode(Command(code=RequestCode.SEND_MESSAGE_V2, ext_fields=send_fields, body=b"body"))
    for side in (fed, plain):
        prepare(side)
        await side.arrive(frame * 3, [])
    assert fed.fed_count - plain.fed_count == 2
    break_fast_path(fed.feed)
    for side in (fed, plain):
        await side.arrive(frame * 5, [])
    assert fed.fed_count - plain.fed_count == 2
    assert "continues without it" in caplog.text
    compare(fed, plain)
    for side in (fed, plain):
        side.close()


async def test_batch_with_too_many_keys_is_refused_as_by_the_handlers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("broker.requests.fast_path", "store.message_store"):
        monkeypatch.setattr(f"tianzhou.{module}.BATCH_KEYS_MAX", 3)
    side = await fed_side()
    handled_count = side.fed_count
    most = [batch.BatchItem(b"x", f"KEYS\x01{keys}\x02") for keys in ("a b", "c")]
    await side.arrive(send_frame(4, batch.encode(most), m="true"), [])
    assert side.fed_count == handled_count, "the handlers were asked"
    await side.arrive(send_frame(5, batch.encode([*most, most[1]]), m="true"), [])
    assert responses(side.transport) == [(4, 0), (5, ResponseCode.MESSAGE_ILLEGAL)]
    assert side.store.max_offset("orders", 0) == 3
    side.close()
