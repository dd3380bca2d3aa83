"""Starts the brokers to measure: Tianzhou with default settings, Apache with a production heap.

Each has its own nameserver, an empty store and RocketMQ's default file sizes. Tianzhou can also run
without the compiled kernel, and with two workers.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from tests.support.apache.servers import apache_broker, apache_namesrv, free_port

from bench.route_load import frame, read_answer

APACHE_VERSION = "5.5.0"
APACHE_JVM = ("-XX:TieredStopAtLevel=4", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-Xms4g", "-Xmx4g")
NAMESRV_JVM = ("-XX:TieredStopAtLevel=4", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-Xms512m", "-Xmx1g")

COMMON: dict[str, Any] = {
    "brokerName": "broker-a",
    "brokerIP1": "127.0.0.1",
    "mappedFileSizeCommitLog": 1 << 30,
    "mappedFileSizeConsumeQueue": 20 * 300_000,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
    "diskMaxUsedSpaceRatio": 95,
}
_SEND_V2, _CREATE_TOPIC = 310, 17
_WORKER_PORT_STEP = 10


KeepFiles = Callable[[Path], None]
"""Moves files out of a directory that is about to be removed."""


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
def tianzhou(keep_files: KeepFiles | None = None, **settings: object) -> Generator[Measured]:
    """Our nameserver and broker."""
    with directory(keep_files) as home, _ours(home, "tianzhou", {}, settings) as measured:
        yield measured


@contextmanager
def pure(keep_files: KeepFiles | None = None, **settings: object) -> Generator[Measured]:
    """The same with the kernel switched off."""
    environment = {"TIANZHOU_PURE": "1"}
    with directory(keep_files) as home, _ours(home, "pure", environment, settings) as measured:
        yield measured


@contextmanager
def directory(keep_files: KeepFiles | None) -> Generator[Path]:
    """Where a server lives and leaves its files."""
    with tempfile.TemporaryDirectory(prefix="bench-broker-") as directory:
        yield Path(directory)
        if keep_files is not None:
            keep_files(Path(directory))


@contextmanager
def _ours(
    home: Path, name: str, environment: dict[str, str], settings: dict[str, object]
) -> Generator[Measured]:
    port = free_port(-2, 1)
    namesrv_file, broker_file = _write_settings(home, port, settings)
    started = time.perf_counter()
    with (
        _program(home, environment, "mqnamesrv", "-c", str(namesrv_file)) as namesrv,
        _program(home, environment, "mqbroker", "-c", str(broker_file)) as broker,
    ):
        await_send(port, broker)
        took_s = time.perf_counter() - started
        yield Measured(name, broker.pid, namesrv.pid, port, took_s)


@contextmanager
def two_workers(keep_files: KeepFiles | None = None) -> Generator[tuple[Measured, Measured]]:
    """Our nameserver, and a broker with two workers."""
    with directory(keep_files) as home:
        ports = (port := free_port(-2, 1, 8, 10, 11), port + _WORKER_PORT_STEP)
        namesrv_file, broker_file = _write_settings(home, port, {})
        started = time.perf_counter()
        command = ("tianzhou", "broker", "--config", str(broker_file), "--workers", "2")
        with (
            _program(home, {}, "mqnamesrv", "-c", str(namesrv_file)) as namesrv,
            _program(home, {}, *command) as parent,
        ):
            for each in ports:
                await_send(each, parent)
            took_s = time.perf_counter() - started
            pids = [_worker_pid(parent.pid, each) for each in ports]
            one, other = (
                Measured("tianzhou", pid, namesrv.pid, each, took_s)
                for pid, each in zip(pids, ports, strict=True)
            )
            yield one, other


def _worker_pid(parent_pid: int, port: int) -> int:
    for child in psutil.Process(parent_pid).children():
        if f"listenPort={port}" in child.cmdline():
            return child.pid
    raise RuntimeError(f"no worker listens on port {port}")


def _write_settings(home: Path, port: int, settings: dict[str, object]) -> tuple[Path, Path]:
    """The files of the nameserver and of the broker."""
    namesrv_port = free_port()
    namesrv_file, broker_file = home / "namesrv.properties", home / "broker.properties"
    namesrv_file.write_text(f"listenPort={namesrv_port}\nkvConfigPath={home}/kvConfig.json\n")
    own = {
        "namesrvAddr": f"127.0.0.1:{namesrv_port}", "listenPort": port,
        "storePathRootDir": home / "store",
    }  # fmt: skip
    lines = (f"{key}={value}\n" for key, value in (COMMON | own | settings).items())
    broker_file.write_text("".join(lines))
    return namesrv_file, broker_file


@contextmanager
def _program(
    home: Path, environment: dict[str, str], name: str, *arguments: str
) -> Generator[subprocess.Popen[bytes]]:
    command = [str(Path(sys.executable).parent / name), *arguments]
    with (home / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | environment)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            # Removing thousands of queues on a busy disk takes long, and they are no longer needed.
            process.kill()
            process.wait()


@contextmanager
def apache(keep_files: KeepFiles | None = None, **settings: object) -> Generator[Measured]:
    """Apache's nameserver and broker."""
    # Tests flush timers less often; here the interval is Apache's default.
    properties: dict[str, Any] = COMMON | {"timerFlushIntervalMs": 1_000} | settings
    started = time.perf_counter()
    with (
        directory(keep_files) as store,
        apache_namesrv(APACHE_VERSION, jvm_options=NAMESRV_JVM) as namesrv,
        apache_broker(
            APACHE_VERSION,
            namesrv.address,
            store_dir=store,
            jvm_options=APACHE_JVM,
            graceful=False,
            await_registration=False,
            **properties,
        ) as broker,
    ):
        await_send(broker.port)
        took_s = time.perf_counter() - started
        yield Measured("apache", broker.pid, namesrv.pid, broker.port, took_s)


def await_send(
    port: int, watched: subprocess.Popen[bytes] | None = None, deadline_s: float = 90
) -> None:
    """Wait until a message is accepted; fails if the watched process ends."""
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
        if watched is not None and watched.poll() is not None:
            raise RuntimeError(f"the broker ended with code {watched.returncode}")
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
