"""The brokers that are measured: ours as a user starts it, and Apache's with a production heap.

Each comes with its nameserver, an empty store and RocketMQ's default sizes of files.
"""

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.apache.kit import apache_broker, apache_namesrv, free_port

from bench.route_load import frame, read_answer

APACHE_VERSION = "5.5.0"
APACHE_JVM = ("-XX:TieredStopAtLevel=4", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-Xms4g", "-Xmx4g")
NAMESRV_JVM = ("-XX:TieredStopAtLevel=4", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-Xms512m", "-Xmx1g")

COMMON: dict[str, object] = {
    "brokerName": "broker-a",
    "brokerIP1": "127.0.0.1",
    "mappedFileSizeCommitLog": 1 << 30,
    "mappedFileSizeConsumeQueue": 20 * 300_000,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
    "diskMaxUsedSpaceRatio": 95,
}
_SEND_V2, _CREATE_TOPIC = 310, 17


@dataclass(frozen=True, slots=True)
class Measured:
    """A broker with its nameserver, both running."""

    name: str
    pid: int
    namesrv_pid: int
    port: int
    start_s: float
    """From the first command to the first accepted send, the nameserver's start included."""


@contextmanager
def tianzhou(**settings: object) -> Generator[Measured]:
    """Our nameserver and broker."""
    with tempfile.TemporaryDirectory(prefix="bench-broker-") as directory:
        home = Path(directory)
        namesrv_port, port = free_port(), free_port(-2, 1)
        (home / "namesrv.properties").write_text(
            f"listenPort={namesrv_port}\nkvConfigPath={home}/kvConfig.json\n"
        )
        own = {
            "namesrvAddr": f"127.0.0.1:{namesrv_port}", "listenPort": port,
            "storePathRootDir": home / "store",
        }  # fmt: skip
        lines = (f"{key}={value}\n" for key, value in (COMMON | own | settings).items())
        (home / "broker.properties").write_text("".join(lines))
        started = time.perf_counter()
        with (
            _program("mqnamesrv", home / "namesrv.properties", home) as namesrv,
            _program("mqbroker", home / "broker.properties", home) as broker,
        ):
            await_send(port)
            took_s = time.perf_counter() - started
            yield Measured("tianzhou", broker.pid, namesrv.pid, port, took_s)


@contextmanager
def _program(name: str, settings: Path, home: Path) -> Generator[subprocess.Popen[bytes]]:
    with (home / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / name), "-c", str(settings)], stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def apache(**settings: object) -> Generator[Measured]:
    """Apache's nameserver and broker."""
    properties: dict[str, Any] = COMMON | settings
    started = time.perf_counter()
    with (
        apache_namesrv(APACHE_VERSION, jvm_options=NAMESRV_JVM) as namesrv,
        apache_broker(
            APACHE_VERSION,
            namesrv.address,
            jvm_options=APACHE_JVM,
            graceful=False,
            await_registration=False,
            **properties,
        ) as broker,
    ):
        await_send(broker.port)
        took_s = time.perf_counter() - started
        yield Measured("apache", broker.pid, namesrv.pid, broker.port, took_s)


def await_send(port: int, deadline_s: float = 90) -> None:
    """Until a message is accepted."""
    deadline = time.monotonic() + deadline_s
    request = frame(
        _SEND_V2,
        {
            "a": "bench", "b": "BenchWarm", "c": "TBW102", "d": "4", "e": "0", "f": "0",
            "g": str(time.time_ns() // 1_000_000), "h": "0", "i": "UNIQ_KEY\x010001", "j": "0",
            "k": "false", "l": "16", "m": "false",
        },
        b"x" * 100,
    )  # fmt: skip
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
                sock.sendall(request)
                if b'"code":0,' in read_answer(sock):
                    return
        except OSError:
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"no send was accepted on port {port} within {deadline_s} s")
        time.sleep(0.01)


def create_topic(port: int, topic: str, queue_count: int) -> None:
    """UPDATE_AND_CREATE_TOPIC."""
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queue_count),
        "writeQueueNums": str(queue_count), "perm": "6", "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        sock.sendall(frame(_CREATE_TOPIC, fields))
        answer = read_answer(sock)
    if b'"code":0,' not in answer:
        raise RuntimeError(f"topic {topic} was not created: {answer[:300]!r}")
