"""The compiled feed and the handlers do the same: answers, log, queues and index equal to the byte.

Two brokers get the same bytes, one with the feed and one without: sends of every form, ordinary and
odd, split anywhere, into files so small that all of them roll; between them topics and settings
change. Nothing is masked: both have the same clock, the same address and the same peer.
"""

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.crash.simulated_disk import SimulatedDisk

from tianzhou.broker.busy import SendGate
from tianzhou.broker.clients import (
    Client,
    ConsumerHeartbeat,
    ConsumerTable,
    Subscription,
    make_subscription,
)
from tianzhou.broker.config import load_broker_config
from tianzhou.broker.durability import Durability
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
from tianzhou.config.properties import Property
from tianzhou.config.settings import Given
from tianzhou.protocol import batch, kernel
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.topics import MULTI_TAG, TopicConfig
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import FLAG_ONEWAY, Command, HeaderEncoding, encode
from tianzhou.protocol.framing import split
from tianzhou.protocol.headers.pull import PullMessageRequest
from tianzhou.protocol.message_id import encode_offset_id
from tianzhou.remoting.connection import Connection, Handler
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.switchboard import Switchboard
from tianzhou.store.config import FlushDiskType
from tianzhou.store.message_store import MessageStore

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(kernel.WHY_PURE is not None, reason=f"no kernel: {kernel.WHY_PURE}"),
]

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
    """Keeps what is written; says who the peer is."""

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
    """A broker as far as sends are concerned, with the feed or without."""

    with_feed: bool
    clock: Now
    peer: tuple[str, int]
    pairs: dict[str, object] = field(default_factory=dict[str, object])

    def __post_init__(self) -> None:
        given = [Given(key, str(value), "test") for key, value in (PAIRS | self.pairs).items()]
        self.settings = LiveSettings(load_broker_config(environ={}, flags=given))
        config = self.settings.config
        self.disk = SimulatedDisk()
        self.store = MessageStore.open(config, disk=self.disk, clock=self.clock, background=False)
        self.topics = TopicTable(system_topics(config), self.clock)
        self.stats = Stats(started_ms=self.clock())
        self.parts = SendParts(
            settings=self.settings,
            topics=self.topics,
            store=self.store,
            intake=Intake(self.store),
            durability=Durability(
                self.store, config.flush_disk_type, config.broker_role, config.sync_flush_timeout
            ),
            gate=SendGate(),
            stats=self.stats,
            clock=self.clock,
            store_host=STORE_HOST,
            id_prefix=encode_offset_id(STORE_HOST, 0)[:-16],
            topics_saved=_saved,
            groups=GroupTable(self.clock),
            is_ordered=lambda _: False,
        )
        self.pulls = PullParts(
            settings=self.settings,
            topics=self.topics,
            groups=self.parts.groups,
            consumers=ConsumerTable[Connection](),
            offsets=OffsetTable(),
            store=self.store,
            parked=ParkedPulls[Connection, Waiting](),
            stats=self.stats,
            clock=self.clock,
            arm=lambda _: None,
            found=self._pull_found,
        )
        self.fed_count = self.pull_count = 0
        self.feed = feed = kernel.new_feed() if self.with_feed else None
        self.hot = (
            HotPath(feed, self.parts, self.pulls, FRAME_MAX_BYTES) if feed is not None else None
        )
        self._board: Switchboard[Connection] = Switchboard(
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
        self.transport = Transport(self.peer)
        self.connection = Connection(
            self._board, self._handler(), feed=self.hot.take if self.hot is not None else None
        )
        self.connection.connection_made(self.transport)

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
                return pull.pull_message(self.pulls, connection, request)
            if request.code not in handlers:
                return Command(code=0, body=request.body)
            return handlers[RequestCode(request.code)](self.parts, connection, request)

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
            if not (self.parts.durability.waiting_count or self._board.tasks):
                return
        raise AssertionError(f"{self.parts.durability.waiting_count} sends still wait")

    def subscribe(self, group: str, topic: str, expression: str, version: int) -> None:
        """A consumer tells what its group wants."""
        client = Client("a client", 0, 0, self.clock())
        wants = (make_subscription(topic, expression, "TAG", version),)
        self.pulls.consumers.heartbeat(
            self.connection,
            client,
            ConsumerHeartbeat(
                group, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET", wants
            ),
        )

    def update(self, key: str, value: str) -> None:
        self.settings.adopt(self.settings.prepare([Property(key, value, 1)], "test"))
        self.store.adopt(self.settings.config)

    def files(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        folders = [ROOT / name for name in ("commitlog", "consumequeue", "index")]
        while folders:
            folder = folders.pop()
            for name in self.disk.names(folder):
                path = folder / name
                if self.disk.is_directory(path):
                    folders.append(path)
                else:
                    handle = self.disk.open(path, writable=False)
                    found[str(path)] = handle.read(0, handle.size_bytes())
                    handle.close()
        return found

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
ODD_NAMES = ("CLUSTER", "DELAY", "TRAN_MSG", "RETRY_TOPIC")
LONG_NAMES = (
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag",
    "bornTimestamp", "flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes",
    "batch",
)  # fmt: skip


class Sender:
    """Makes frames, most of them ordinary."""

    def __init__(self, seed: int, pull_percent: int) -> None:
        self.random = random.Random(seed)
        self.opaque = 0
        self.pull_percent = pull_percent

    def chance(self, percent: int) -> bool:
        return self.random.randrange(100) < percent

    def frame(self) -> bytes:
        if self.chance(self.pull_percent):
            return self.pull_frame()
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
        return encode(command)

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
            choose(("0", "0", "0", "1", "16", "768", "-2147483648", "64"))
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
        parts: list[str] = []
        count = self.random.choice((0, 2, 3, 3, 4, 6))
        names = self.random.sample(ORDINARY_NAMES, count)
        if self.chance(15):
            names = self.random.choices(ORDINARY_NAMES + ODD_NAMES, k=count)
        for name in names:
            value = self.random.choice(TEXTS)
            if name in ("KEYS", "UNIQ_KEY") and self.chance(80):
                value = " ".join(f"k{self.random.randrange(50)}" for _ in range(2))
            parts.append(f"{name}\x01{value}" if self.chance(97) else name)
        text = "\x02".join(parts) + self.random.choice(("", "\x02"))
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
    """Something happens besides sends, to both."""
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
            side.store.delete_topic("gone")
        elif what == 4:
            side.update("brokerPermission", "6" if number % 4 else "4")
        elif what == 5:
            side.subscribe("g", "orders", "*" if number % 2 else "a || k", number)
        elif what == 6:
            side.parts.groups.put(
                SubscriptionGroupConfig(group_name="forbidden", consume_enable=number % 2 == 0)
            )
        else:
            side.clock.ms += number * 700


def compare(fed: Side, plain: Side) -> None:
    answers = [bytes(side.transport.written) for side in (fed, plain)]
    if plain.settings.config.flush_disk_type is FlushDiskType.SYNC_FLUSH:
        # Answers that waited leave when they may, in blocks or one by one.
        answers = [b"".join(sorted(frames_of(each))) for each in answers]
    assert answers[0] == answers[1]
    assert fed.store.end_log_offset == plain.store.end_log_offset
    assert fed.stats.put == plain.stats.put
    assert fed.stats.by_queue == plain.stats.by_queue
    assert fed.stats.by_group == plain.stats.by_group
    assert fed.stats.pulls_found == plain.stats.pulls_found
    assert fed.pulls.offsets.by_key == plain.pulls.offsets.by_key
    assert fed.files() == plain.files()


def frames_of(stream: bytes) -> list[bytes]:
    return [stream[start:stop] for start, stop in split(stream)[0]]


def run(
    seed: int, peer: tuple[str, int], pairs: dict[str, object], *, pull_percent: int = 10
) -> tuple[int, int]:
    return asyncio.run(_run(Sender(seed, pull_percent), peer, pairs))


async def _run(sender: Sender, peer: tuple[str, int], pairs: dict[str, object]) -> tuple[int, int]:
    """Returns how many requests, and how many pulls among them, only the feed has handled."""
    sides = [Side(with_feed, Now(), peer, pairs) for with_feed in (True, False)]
    for side in sides:
        prepare(side)
        side.subscribe("g", "payments", "b c", 1)
    for step in range(100):
        stream = b"".join(sender.frame() for _ in range(sender.random.choice((1, 2, 5, 12))))
        pieces = sender.pieces(len(stream))
        for side in sides:
            random.seed(step)  # a send without a queue gets one by chance
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
    assert sides[0].files() == sides[1].files()
    fed, plain = sides
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
"""Files in which a pull finds most of what it wants."""


@pytest.mark.parametrize("seed", range(10))
def test_the_feed_does_what_the_handlers_do(seed: int) -> None:
    fed_count, _ = run(seed, PEERS[seed % 2], SETTINGS.get(seed, {}))
    assert fed_count > 20, "the feed took next to nothing, so nothing was compared"


@pytest.mark.parametrize("seed", range(20, 28))
def test_pulls_that_find_something_are_answered_alike(seed: int) -> None:
    pairs = LARGER | ({"flushDiskType": "SYNC_FLUSH"} if seed == 27 else {})
    _, fed_pull_count = run(seed, PEERS[0], pairs, pull_percent=50)
    assert fed_pull_count > 2, "the feed took next to no pull"


async def test_a_feed_that_fails_leaves_its_work_to_the_handlers(
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
    assert fed.feed is not None
    # A lease that promises more memory than there is: the feed finds out in the middle of a send.
    fed.feed.lend_index(memoryview(bytearray(50)), 17, 60, 60, (0, 0, 0, 0, 0, 1))
    for side in (fed, plain):
        await side.arrive(frame * 5, [])
    assert fed.fed_count - plain.fed_count == 2
    assert "goes on without it" in caplog.text
    compare(fed, plain)
    for side in (fed, plain):
        side.close()
