"""Captures the golden bytes: the frames and records of Apache RocketMQ's programs.

    python -m tests.golden.capture [VERSION ...]

A nameserver, a broker and clients of one version communicate through recording proxies, step by
step. One or two frames of each kind are saved, with their step, and records are copied from the
broker's commit log. None of our code takes part: frames and records are separated here by their
length prefixes alone. The files it writes are the data of `test_golden.py` in the repository; run
it again to add a kind or a version.
"""

import json
import socket
import struct
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.apache.servers import (
    LOOPBACK,
    VERSIONS,
    Server,
    Shell,
    apache_broker,
    apache_namesrv,
    free_port,
    java_shell,
    wait_until,
)
from tianzhou.protocol.codes import RequestCode

HERE = Path(__file__).parent
ENCODINGS = ("JSON", "ROCKETMQ")
KEPT = {
    "GET_ROUTEINFO_BY_TOPIC answer 0": 2,
    "HEART_BEAT request": 3,
    "POP_MESSAGE answer 0": 2,
    "PULL_MESSAGE answer 0": 3,
    "PULL_MESSAGE request": 2,
}
"""How many frames of a kind are saved where one is not enough."""
FRAME_BYTES_MAX = 6000
CLUSTER = "DefaultCluster"
BROKER = "broker-a"

CLIENT_STEPS: tuple[str, ...] = (
    "startProducer", "sendPlain", "sendTagsAndKeys", "sendUnicode", "sendNoWait",
    "sendDelayed", "sendOneway", "sendAsync", "sendBatch", "sendCompressed", "sendOrdered",
    "sendSigned", "askForMissing",
    "startTransactionProducer", "transactionCommit", "transactionRollback", "transactionChecked",
    "consume", "joinGroup", "consumeOrderly", "consumeSql", "consumeLater", "requestReply", "pull",
)  # fmt: skip
CLIENT_STEPS_5X = ("sendCompressedLz4", "sendCompressedZstd")
CLIENT_STEPS_5X_JSON = ("consumePop", "consumePopAgain")
"""Codes of pop (200050 and on) do not fit into the 16 bits that a binary header has for a code."""

TOPICS = (
    "GoldenTopic", "GoldenOrdered", "GoldenRetried", "GoldenRequest", "GoldenPop", "GoldenBig",
    "GoldenGone",
)  # fmt: skip

LONG_TOPIC = "GoldenPopAgain_" + "0123456789" * 6
LONG_GROUP = "golden_pop_again_" + "0123456789" * 9
"""As in Scenario.java: names that make a retry topic of more than 127 characters."""

ADMIN_BEFORE = tuple(
    ("updateTopic", "-c", CLUSTER, "-t", topic, "-r", "2", "-w", "2") for topic in TOPICS
)
ADMIN_BEFORE_5X = (
    (
        "setConsumeMode",
        "-c",
        CLUSTER,
        "-t",
        "GoldenPop",
        "-g",
        "golden_pop",
        "-m",
        "POP",
        "-q",
        "8",
    ),
    ("updateTopic", "-c", CLUSTER, "-t", LONG_TOPIC, "-r", "1", "-w", "1"),
    ("setConsumeMode", "-c", CLUSTER, "-t", LONG_TOPIC, "-g", LONG_GROUP, "-m", "POP", "-q", "8"),
)
ADMIN_WHILE_CONSUMING = (
    ("clusterList",),
    ("topicList",),
    ("topicList", "-c"),
    ("topicClusterList", "-t", "GoldenTopic"),
    ("topicRoute", "-t", "GoldenTopic"),
    ("topicStatus", "-t", "GoldenTopic"),
    ("updateTopicPerm", "-c", CLUSTER, "-t", "GoldenGone", "-p", "4"),
    ("updateSubGroup", "-c", CLUSTER, "-g", "golden_group", "-r", "3"),
    ("deleteSubGroup", "-c", CLUSTER, "-g", "golden_group"),
    ("consumerProgress", "-g", "golden_consumers"),
    ("consumerConnection", "-g", "golden_consumers"),
    ("producerConnection", "-g", "golden_producers", "-t", "GoldenTopic"),
    ("resetOffsetByTime", "-g", "golden_consumers", "-t", "GoldenTopic", "-s", "now", "-f", "true"),
    ("updateKvConfig", "-s", "golden", "-k", "city", "-v", "北京"),
    ("deleteKvConfig", "-s", "golden", "-k", "city"),
    ("updateOrderConf", "-t", "GoldenOrdered", "-m", "put", "-v", f"{BROKER}:2"),
    ("updateOrderConf", "-t", "GoldenOrdered", "-m", "get"),
    ("updateOrderConf", "-t", "GoldenOrdered", "-m", "delete"),
    ("getNamesrvConfig",),
    ("updateNamesrvConfig", "-k", "clusterTest", "-v", "false"),
    ("wipeWritePerm", "-b", BROKER),
    ("addWritePerm", "-b", BROKER),
    ("getConsumerConfig", "-g", "golden_consumers"),
    ("deleteTopic", "-c", CLUSTER, "-t", "GoldenGone"),
    ("updateBrokerConfig", "-c", CLUSTER, "-k", "compressedRegister", "-v", "true"),
)


# -- recording -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as it passed; `connection` identifies the stream, `to_server` its direction."""

    step: str
    client: str
    server: str
    connection: int
    to_server: bool
    content: bytes


@dataclass(slots=True)
class Recording:
    """All frames of one run, in the order in which they passed."""

    step: str = "boot"
    frames: list[Frame] = field(default_factory=list[Frame])
    connection_count: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class RecordingProxy:
    """Listens on a port, forwards every frame to `target_port` and back, and records it.

    Route responses would lead clients past the proxy, so addresses in `rewrites` are replaced by
    others of equal length in bytes sent to the client. The recorded copy is the original.
    """

    def __init__(self, recording: Recording, client: str, server: str, target_port: int) -> None:
        self.recording = recording
        self.client = client
        self.server = server
        self.target_port = target_port
        self.rewrites: list[tuple[bytes, bytes]] = []
        self.sockets: list[socket.socket] = []
        self.listener = socket.create_server((LOOPBACK, free_port()))
        self.port: int = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection((LOOPBACK, self.target_port))
            except ConnectionRefusedError:
                near.close()
                continue
            self.sockets += [near, far]
            with self.recording.lock:
                self.recording.connection_count += 1
                connection = self.recording.connection_count
            for source, sink, to_server in ((near, far, True), (far, near, False)):
                arguments = (source, sink, connection, to_server)
                threading.Thread(target=self.pump, args=arguments, daemon=True).start()

    def pump(
        self, source: socket.socket, sink: socket.socket, connection: int, to_server: bool
    ) -> None:
        pending = b""
        try:
            while received := source.recv(65536):
                pending += received
                while len(pending) >= 4:
                    stop = 4 + int.from_bytes(pending[:4], "big")
                    if len(pending) < stop:
                        break
                    self.keep(pending[:stop], connection, to_server)
                    sink.sendall(self.rewritten(pending[:stop], to_server))
                    pending = pending[stop:]
        except OSError:
            pass
        for end in (source, sink):
            # The other direction may be reading from it, and must see the end too.
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def keep(self, content: bytes, connection: int, to_server: bool) -> None:
        with self.recording.lock:
            self.recording.frames.append(
                Frame(
                    self.recording.step,
                    self.client,
                    self.server,
                    connection,
                    to_server,
                    content,
                )
            )

    def rewritten(self, content: bytes, to_server: bool) -> bytes:
        if to_server:
            return content
        for old, new in self.rewrites:
            content = content.replace(old, new)
        return content

    def close(self) -> None:
        self.listener.close()
        for each in self.sockets:
            each.close()


# -- the run ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stage:
    """The programs of one run."""

    version: str
    recording: Recording
    namesrv: str
    shell: Shell
    broker: Server

    def client(self, step: str) -> None:
        self.recording.step = step
        outcome = self.shell.ask("scenario", namesrv=self.namesrv, step=step, timeout_s=90)
        say(f"  {step}: {outcome}")

    def admin(self, *arguments: str) -> None:
        self.recording.step = " ".join(("mqadmin", *arguments))
        output = self.shell.mqadmin(self.namesrv, *arguments)
        say(f"  {self.recording.step}: {output.strip().splitlines()[-1:]}")
        if "Exception" in output:
            raise AssertionError(output)


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


@contextmanager
def stage(version: str, encoding: str, store: Path) -> Generator[Stage]:
    """Nameserver, broker, proxies and a JVM for clients, all with one header encoding."""
    options = (f"-Drocketmq.serialize.type={encoding}",)
    recording = Recording()
    with ExitStack() as stack:
        namesrv = stack.enter_context(apache_namesrv(version, jvm_options=options))
        broker_side = RecordingProxy(recording, "broker", "namesrv", namesrv.port)
        stack.callback(broker_side.close)
        broker = stack.enter_context(
            apache_broker(
                version,
                broker_side.address,
                jvm_options=options,
                store_dir=store,
                # A query to the nameserver would add a frame of ours.
                await_registration=False,
                mappedFileSizeCommitLog=128 * 1024,
                autoCreateTopicEnable="false",
                enablePropertyFilter="true",
                transactionCheckInterval=1000,
                transactionTimeOut=1000,
            )
        )
        wait_until(
            lambda: any(not frame.to_server for frame in recording.frames),
            "answer to the registration of the broker",
            timeout_s=60,
            seen=broker.report,
        )
        client_side = RecordingProxy(recording, "client", "namesrv", namesrv.port)
        stack.callback(client_side.close)
        in_front = RecordingProxy(recording, "client", "broker", broker.port)
        stack.callback(in_front.close)
        client_side.rewrites.append((broker.address.encode(), in_front.address.encode()))
        shell = stack.enter_context(java_shell(version, jvm_options=options))
        yield Stage(version, recording, client_side.address, shell, broker)


def run(version: str, encoding: str, store: Path) -> Recording:
    """Run all steps; returns the frames on the wire, with the stored records in `store`."""
    is_5x = version.startswith("5.")
    with stage(version, encoding, store) as on:
        for arguments in (*ADMIN_BEFORE, *(ADMIN_BEFORE_5X if is_5x else ())):
            on.admin(*arguments)
        steps = CLIENT_STEPS
        if is_5x:
            steps += CLIENT_STEPS_5X + (CLIENT_STEPS_5X_JSON if encoding == "JSON" else ())
        for step in steps:
            on.client(step)
        for arguments in ADMIN_WHILE_CONSUMING:
            on.admin(*arguments)
        wait_until(
            lambda: any(is_compressed_registration(frame.content) for frame in on.recording.frames),
            "a compressed registration, due every 10 s",
            timeout_s=60,
        )
        on.admin("updateBrokerConfig", "-c", CLUSTER, "-k", "compressedRegister", "-v", "false")
        on.client("stop")
        send_v1(on, encoding)
        on.client("startProducer")
        on.client("sendBig")
        on.recording.step = "stop of the broker"
        on.broker.stop()
    return on.recording


def send_v1(on: Stage, encoding: str) -> None:
    """A client can be set to write long names of header fields, as the oldest clients do."""
    options = (
        f"-Drocketmq.serialize.type={encoding}",
        "-Dorg.apache.rocketmq.client.sendSmartMsg=false",
    )
    with java_shell(on.version, jvm_options=options) as shell:
        for step in ("startProducer", "sendTagsAndKeys"):
            on.recording.step = f"{step}, V1"
            shell.ask("scenario", namesrv=on.namesrv, step=step)


# -- choosing frames -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Head:
    """The fixed fields of a header, read without any code under test."""

    code: int
    opaque: int
    flag: int
    encoding: str


def read_head(content: bytes) -> Head:
    headline = int.from_bytes(content[4:8], "big")
    header = content[8 : 8 + (headline & 0xFFFFFF)]
    if headline >> 24 == 1:
        code, _, _, opaque, flag = struct.unpack_from(">hBhii", header)
        return Head(code, opaque, flag, "ROCKETMQ")
    fields = json.loads(header)
    return Head(fields["code"], fields["opaque"], fields["flag"], "JSON")


def is_compressed_registration(content: bytes) -> bool:
    """Detected by its body, a zlib stream; the header of a 5.x broker says otherwise."""
    headline = int.from_bytes(content[4:8], "big")
    is_zlib = content[8 + (headline & 0xFFFFFF) :].startswith(b"\x78\xda")
    return is_zlib and read_head(content).code == RequestCode.REGISTER_BROKER


def choose(recording: Recording, version: str) -> Iterator[dict[str, object]]:
    """One frame of each kind, or a few; of sends, one of each step."""
    asked: dict[tuple[int, bool, int], int] = {}
    kept: Counter[tuple[object, ...]] = Counter()
    for frame in recording.frames:
        head = read_head(frame.content)
        if head.flag & 1:
            request = asked.get((frame.connection, not frame.to_server, head.opaque))
            if request is None:
                raise AssertionError(f"a response to nothing: {frame}")
            kind = f"answer {head.code}"
        else:
            request = asked[frame.connection, frame.to_server, head.opaque] = head.code
            kind = "oneway" if head.flag & 2 else "request"
        name = RequestCode(request).name
        # Heartbeats of consumers differ by what they subscribe to.
        has_consumers = b'"consumerDataSet":[{' in frame.content
        by_step = name.startswith("SEND_") and not head.flag & 1
        is_compressed = is_compressed_registration(frame.content)
        variant = frame.step if by_step else (is_compressed, has_consumers)
        key = (frame.client, frame.to_server, request, kind, head.encoding, variant)
        if len(frame.content) > FRAME_BYTES_MAX or kept[key] >= KEPT.get(f"{name} {kind}", 1):
            continue
        kept[key] += 1
        sender, receiver = frame.client, frame.server
        if not frame.to_server:
            sender, receiver = receiver, sender
        yield {
            "note": f"{name} {kind} ({frame.step})",
            "from": sender,
            "to": receiver,
            "version": version,
            "encoding": head.encoding,
            "request": request,
            "hex": frame.content.hex(),
        }


# -- choosing records ------------------------------------------------------------------------------

MAGIC_V1, MAGIC_V2, MAGIC_BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194


def cut_records(store: Path) -> Iterator[bytes]:
    """The records of a commit log, and of the filler at the end of each file its first 8 bytes."""
    for path in sorted((store / "commitlog").iterdir()):
        content = path.read_bytes()
        start = 0
        while start + 8 <= len(content):
            size, magic = struct.unpack_from(">II", content, start)
            if magic == MAGIC_BLANK:
                yield content[start : start + 8]
            if magic not in (MAGIC_V1, MAGIC_V2):
                break
            yield content[start : start + size]
            start += size


def choose_records(store: Path, version: str, hosts: str) -> Iterator[dict[str, object]]:
    """One record for each pair of topic and kind (the flag word, what it was stored as)."""
    seen: set[tuple[object, ...]] = set()
    for record in cut_records(store):
        size, magic = struct.unpack_from(">II", record)
        if magic == MAGIC_BLANK:
            key: tuple[object, ...] = ("blank",)
            note = f"filler of the {size} bytes left in a log file, first 8 bytes"
        elif size > FRAME_BYTES_MAX:
            continue
        else:
            flag = int.from_bytes(record[36:40], "big")
            topic = topic_of(record, magic, flag)
            shape = record.count(b"\1"), len(record) // 64
            key = (magic, flag, topic, shape if topic == "GoldenTopic" else ())
            layout = "v2" if magic == MAGIC_V2 else "v1"
            note = f"{layout} record, {hosts} hosts, topic {topic}, flag {flag}"
        if key not in seen:
            seen.add(key)
            yield {"note": note, "version": version, "hex": record.hex()}


def topic_of(record: bytes, magic: int, flag: int) -> str:
    """The topic follows the body, whose position depends on the width of the two host fields."""
    # size to born time; born host; store time; store host; reconsume count, prepared offset
    start = 48 + (20 if flag & 0x10 else 8) + 8 + (20 if flag & 0x20 else 8) + 4 + 8
    body_size = int.from_bytes(record[start : start + 4], "big")
    start += 4 + body_size
    width = 2 if magic == MAGIC_V2 else 1
    size = int.from_bytes(record[start : start + width], "big")
    return record[start + width : start + width + size].decode()


def run_ipv6(version: str, store: Path) -> None:
    """Store a few messages whose born and store hosts are IPv6 addresses."""
    with (
        apache_namesrv(version) as namesrv,
        apache_broker(version, namesrv.address, store_dir=store, brokerIP1="::1") as broker,
        java_shell(version) as shell,
    ):
        topic = ("updateTopic", "-b", broker.address, "-t", "GoldenTopic", "-r", "2", "-w", "2")
        say(shell.mqadmin(namesrv.address, *topic))
        for step in ("startProducer", "sendTagsAndKeys", "sendBatch", "sendDelayed"):
            say(f"  IPv6 {step}")
            shell.ask("scenario", namesrv=namesrv.address, step=step)


# -- writing ---------------------------------------------------------------------------------------


def write_lines(name: str, lines: list[dict[str, object]]) -> None:
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (HERE / name).write_text(text)
    say(f"{name}: {len(lines)} lines, {len(text) // 1024} KiB")


def main() -> None:
    for version in sys.argv[1:] or VERSIONS:
        records: list[dict[str, object]] = []
        with tempfile.TemporaryDirectory(prefix="golden-") as directory:
            for encoding in ENCODINGS:
                say(f"{version} {encoding}")
                store = Path(directory) / encoding
                recording = run(version, encoding, store)
                write_lines(
                    f"frames-{version}-{encoding.lower()}.jsonl", list(choose(recording, version))
                )
            records += choose_records(Path(directory) / "JSON", version, "IPv4")
            run_ipv6(version, Path(directory) / "ipv6")
            records += choose_records(Path(directory) / "ipv6", version, "IPv6")
        write_lines(f"records-{version}.jsonl", records)


if __name__ == "__main__":
    main()
