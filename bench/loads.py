"""Builds and runs the load generators.

Two C programs, independent of the servers: mqload (one topic, or batches; its source is the file in
MQLOAD_SOURCE, else in ../shared/bench) and topicload in this folder (many topics, filtered pulls).
Each is one process with one thread. Two can run at the same time, on one server or on one each; the
CPU of both does not count as load of other processes.
"""

import json
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.broker_servers import Measured
from bench.route_load import frame, read_answer
from tianzhou.protocol.records import batch

MQLOAD_SOURCE = Path(__file__).resolve().parents[2] / "shared" / "bench" / "mqload.c"
TOPICLOAD_SOURCE = Path(__file__).with_name("topicload.c")
DEADLINE_S = 300

TAG_COUNT = 100
BATCH_SIZE = 32
RECORD_BYTES = 1024 + 88 + 1 + 9 + 2 + 110
"""Approximate size of a 1 KiB message in the log: body, header, topic, properties."""
DEVICE_FILE_BYTES = 1 << 30

_BATCH_CODE, _CREATE_TOPIC_LIST = 320, 18
_TOPICS_A_REQUEST = 500

Load = dict[str, Any]
"""The output of a generator."""


@dataclass(frozen=True, slots=True)
class Programs:
    """The built generators."""

    mqload: Path
    topicload: Path


@contextmanager
def built() -> Generator[Programs]:
    """Both generators, for as long as they are needed."""
    mqload_source = Path(os.environ.get("MQLOAD_SOURCE", MQLOAD_SOURCE))
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not mqload_source.is_file() or compiler is None:
        raise SystemExit(
            f"bench: the load generator needs a C compiler and its source, expected at "
            f"{mqload_source}; name it with MQLOAD_SOURCE"
        )
    with tempfile.TemporaryDirectory(prefix="mqload-") as directory:
        made = Programs(Path(directory) / "mqload", Path(directory) / "topicload")
        for program, source in ((made.mqload, mqload_source), (made.topicload, TOPICLOAD_SOURCE)):
            subprocess.run([compiler, "-O2", "-o", str(program), str(source)], check=True)
        yield made


# -- running ---------------------------------------------------------------------------------------


def run(
    program: Path,
    server: Measured,
    arguments: tuple[str, ...],
    *,
    beside: tuple[int, ...] = (),
    strict: bool = True,
) -> Load:
    """One run of a generator; a strict one raises RuntimeError if there are errors in it.

    The CPU of the processes `beside` counts as the server's.
    """
    return _told(server, _start(program, server, arguments, beside), strict=strict)


def run_both(
    program: Path, one: Measured, first: tuple[str, ...], other: Measured, second: tuple[str, ...]
) -> tuple[Load, Load]:
    """Two runs at the same time, on one server or on two."""
    started = _start(program, one, first), _start(program, other, second)
    loads = _told(one, started[0]), _told(other, started[1])
    own = [load["gen_cpu_cores"] for load in loads]
    served = [load["server_cpu_cores"] for load in loads] if one.pid != other.pid else [0.0, 0.0]
    for load, neighbour in zip(loads, (1, 0), strict=True):
        load["other_cpu_cores"] -= own[neighbour] + served[neighbour]
    return loads


def _start(
    program: Path, server: Measured, arguments: tuple[str, ...], beside: tuple[int, ...] = ()
) -> subprocess.Popen[str]:
    pids = ",".join(map(str, (server.pid, *beside)))
    command = [str(program), *arguments, "--port", str(server.port), "--server-pid", pids]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _told(server: Measured, started: subprocess.Popen[str], *, strict: bool = True) -> Load:
    with started:
        try:
            out, complaints = started.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            started.kill()
            raise
    if started.returncode:
        raise RuntimeError(f"the load failed on {server.name}: {complaints[-500:]} {out}")
    result: Load = json.loads(out)
    # A pull at the end of its queue starts over, and one whose filter matched nothing continues;
    # every other response that is not a success is an error.
    faults = {code: count for code, count in result["errors"].items() if code not in ("19", "20")}
    if strict and (faults or result["bad_frames"] or result["conns_lost"] or result["offset_gaps"]):
        raise RuntimeError(f"{server.name}: the load met errors: {out}")
    return result


# -- preparing -------------------------------------------------------------------------------------


def create_topics(port: int, names: list[str], queue_count: int) -> None:
    """Create topics with UPDATE_AND_CREATE_TOPIC_LIST, some at a time."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        for at in range(0, len(names), _TOPICS_A_REQUEST):
            topics: list[dict[str, object]] = [
                {
                    "order": False, "perm": 6, "readQueueNums": queue_count,
                    "topicFilterType": "SINGLE_TAG", "topicName": name, "topicSysFlag": 0,
                    "writeQueueNums": queue_count,
                }
                for name in names[at : at + _TOPICS_A_REQUEST]
            ]  # fmt: skip
            body = json.dumps({"topicConfigList": topics}, separators=(",", ":")).encode()
            sock.sendall(frame(_CREATE_TOPIC_LIST, {}, body))
            answer = read_answer(sock)
            if b'"code":0,' not in answer:
                raise RuntimeError(f"{len(topics)} topics were not created: {answer[:300]!r}")


def topic_names(prefix: str, count: int) -> list[str]:
    """The topic names of topicload."""
    return [prefix] if count == 1 else [f"{prefix}{number:04}" for number in range(count)]


def tag(number: int) -> str:
    return f"t{number:02}"


def fill_tagged(port: int, topic: str, queue_count: int, count: int, body_bytes: int) -> None:
    """Send messages of which each one in a hundred has a given tag, evenly over the queues."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        waiting = 0
        for request in _tagged_batches(topic, queue_count, count, body_bytes):
            sock.sendall(request)
            waiting += 1
            if waiting == 8:
                _check_stored(sock)
                waiting -= 1
        for _ in range(waiting):
            _check_stored(sock)


def _check_stored(sock: socket.socket) -> None:
    answer = read_answer(sock)
    if b'"code":0,' not in answer:
        raise RuntimeError(f"a batch was not stored: {answer[:300]!r}")


def _tagged_batches(topic: str, queue_count: int, count: int, body_bytes: int) -> Iterator[bytes]:
    dice, body = random.Random(1), bytes(range(32, 96)) * (body_bytes // 64)
    for number in range(0, count, BATCH_SIZE):
        items = [
            batch.BatchItem(
                body=body,
                properties_text=f"UNIQ_KEY\x01{number + at:032X}\x02"
                f"TAGS\x01{tag(dice.randrange(TAG_COUNT))}\x02",
            )
            for at in range(BATCH_SIZE)
        ]
        fields = {
            "a": "bench_group", "b": topic, "c": "TBW102", "d": str(queue_count),
            "e": str(number // BATCH_SIZE % queue_count), "f": "0", "g": "1700000000000", "h": "0",
            "i": "WAIT\x01true\x02", "j": "0", "k": "false", "l": "0", "m": "true",
        }  # fmt: skip
        yield frame(_BATCH_CODE, fields, batch.encode(items))


# -- the disk --------------------------------------------------------------------------------------


def device_messages_per_s(waiting: int, duration_s: float) -> tuple[float, float]:
    """The limit of the disk if each of `waiting` senders waits for a sync, without other cost.

    The bytes of that many records are repeatedly appended to a preallocated file like a log, and
    synced. Returns messages and syncs per second.
    """
    group = random.Random(1).randbytes(waiting * RECORD_BYTES)
    with tempfile.TemporaryFile(prefix="bench-device-") as file:
        handle = file.fileno()
        os.posix_fallocate(handle, 0, DEVICE_FILE_BYTES)
        os.fsync(handle)
        offset = sync_count = 0
        started = time.perf_counter()
        while (spent_s := time.perf_counter() - started) < duration_s:
            if offset + len(group) > DEVICE_FILE_BYTES:
                offset = 0
            os.pwrite(handle, group, offset)
            os.fdatasync(handle)
            offset += len(group)
            sync_count += 1
    return sync_count * waiting / spent_s, sync_count / spent_s
