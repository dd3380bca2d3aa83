"""One store directory, two systems: Apache's broker opens and serves our store, and we serve its.

The stock client reads every message by its queue offset. Each 13th, which over time covers every
kind, it also looks up by its id and by each of its keys; `TIANZHOU_LOOKUP_STRIDE=1` looks up all of
them.
"""

import json
import os
import subprocess
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.support.apache.jvm import java_command, make_home
from tests.support.apache.processes import STOP_TIMEOUT_S
from tests.support.apache.servers import (
    LOOPBACK,
    VERSIONS,
    Server,
    apache_broker,
    apache_namesrv,
    free_port,
)
from tests.support.gate import EACH_VERSION
from tests.support.store import append_batch
from tianzhou.protocol import properties, sysflag
from tianzhou.protocol.records.record import decode_record
from tianzhou.store.config import StoreConfig
from tianzhou.store.consume_queue_ext import is_address
from tianzhou.store.message_store import Draft, MessageStore
from tianzhou.store.reading import ReadStatus

pytestmark = pytest.mark.apache

MESSAGES = {"closed": 100_000, "killed": 12_000}
APACHE_MESSAGES = 1500
STRIDE = int(os.environ.get("TIANZHOU_LOOKUP_STRIDE", "13"))
TOPICS = {"OursPlain": 4, "OursBatch": 3, "%RETRY%ours_group": 1}
APACHE_TOPIC = "TheirTopic"
APACHE_QUEUES = 4
BROKER = "broker-a"
EXT_FILE_BYTES = 5000
BORN_HOSTS = (("192.0.2.7", 3456), ("2001:db8::77", 4567))


def store_config(root: Path, *, ext: bool = False) -> StoreConfig:
    """The file sizes of Apache's broker in these tests."""
    return StoreConfig(
        store_path_root_dir=root,
        enable_consume_queue_ext=ext,
        mapped_file_size_consume_queue_ext=EXT_FILE_BYTES,
        mapped_file_size_commit_log=16 * 1024 * 1024,
        mapped_file_size_consume_queue=20 * 6000,
        max_hash_slot_num=10_000,
        max_index_num=40_000,
    )


@dataclass(frozen=True, slots=True)
class Given:
    """A message as a reader must see it."""

    topic: str
    queue_id: int
    tags: str
    keys: str
    body: bytes
    born: str

    def line(self, queue_offset: int, log_offset: int, store_time_ms: int) -> str:
        """As StoreReader.java describes a message."""
        return "\t".join((
            self.topic, str(self.queue_id), str(queue_offset), str(log_offset),
            str(store_time_ms), self.born, self.tags or "null", self.keys or "null",
            str(len(self.body)), str(zlib.crc32(self.body)),
        ))  # fmt: skip


def message(number: int, topic: str, store_host: tuple[str, int]) -> tuple[Draft, Given]:
    """Messages of many kinds: with and without tags, keys, bodies; compressed; from IPv6 hosts."""
    born_host = BORN_HOSTS[number % 2]
    tags = ("", "red", "grün")[number % 3]
    keys = " ".join([f"key{number}", f"group{number // 4}"][: number % 3])
    body = b"%d;" % number * (number % 90) if number % 7 else b""
    named = {"UNIQ_KEY": f"7F000001{topic[:1].encode().hex()}{number:022X}"} if number % 5 else {}
    if tags:
        named["TAGS"] = tags
    if keys:
        named["KEYS"] = keys
    squeezed = number % 11 == 0 and bool(body)
    queue_id = number // 3 % TOPICS[topic]
    draft = Draft(
        topic, queue_id, zlib.compress(body) if squeezed else body,
        properties.encode(named, closed=number % 2 == 0), 1000 + number, born_host, store_host,
        flag=number % 17, sys_flag=sysflag.COMPRESSED if squeezed else 0,
    )  # fmt: skip
    born = born_host[0] if number % 2 == 0 else "2001:db8:0:0:0:0:0:77"
    return draft, Given(topic, queue_id, tags, keys, body, born)


def write_ours(store: MessageStore, store_host: tuple[str, int], count: int) -> list[str]:
    """Fills a store; the lines that a reader must write."""
    lines: list[str] = []
    number = 0
    while number < count:
        topic = list(TOPICS)[number // 10 % 3]
        if topic == "OursBatch":
            made = [message(number // 30 * 30 + i, topic, store_host) for i in range(10)]
            queue_id = made[0][0].queue_id
            drafts = [_in_queue(one, queue_id) for one, _ in made]
            done = append_batch(store, drafts)
            lines += [
                Given(g.topic, queue_id, g.tags, g.keys, g.body, g.born).line(
                    done.queue_offset + i, done.log_offsets[i], done.store_time_ms
                )
                for i, (_, g) in enumerate(made)
            ]
            number += 10
        else:
            one, given = message(number, topic, store_host)
            done = store.append(one)
            lines.append(given.line(done.queue_offset, done.log_offset, done.store_time_ms))
            number += 1
    return lines


def _in_queue(one: Draft, queue_id: int) -> Draft:
    return Draft(
        one.topic, queue_id, one.body, one.properties_text, one.born_time_ms, one.born_host,
        one.store_host, one.flag, one.sys_flag,
    )  # fmt: skip


def write_topics(root: Path) -> None:
    """The table from which Apache's broker reads our topics."""
    table = {
        topic: {
            "order": False, "perm": 6, "readQueueNums": queues, "topicFilterType": "SINGLE_TAG",
            "topicName": topic, "topicSysFlag": 0, "writeQueueNums": queues,
        }
        for topic, queues in TOPICS.items()
    }  # fmt: skip
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_000}
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text(
        json.dumps({"dataVersion": version, "topicConfigTable": table})
    )


class Reader:
    """One JVM of a version with StoreReader.java in it."""

    def __init__(self, version: str, home: Path) -> None:
        self._errors = home / "stderr.log"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [*java_command(version, make_home(home)), "StoreReader"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=home,
                text=True,
            )

    def ask(self, verb: str, namesrv: Server, file: Path, *rest: str) -> list[str]:
        """The output of StoreReader.java."""
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        requests.write("\t".join((verb, namesrv.address, BROKER, str(file), *rest)) + "\n")
        requests.flush()
        answer = answers.readline()
        assert answer == "done\n", answer + self._errors.read_text(errors="replace")[-4000:]
        return file.read_text().splitlines()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(STOP_TIMEOUT_S)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def namesrv(apache: None) -> Iterator[Server]:
    with apache_namesrv(VERSIONS[-1]) as server:
        yield server


@pytest.fixture(scope="module", params=EACH_VERSION)
def version(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def reader(
    apache: None, version: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Reader]:
    made = Reader(version, tmp_path_factory.mktemp("reader"))
    yield made
    made.close()


@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_apache_serves_our_store(
    version: str, reader: Reader, ending: str, namesrv: Server, tmp_path: Path
) -> None:
    port = free_port(-2, 1)
    root = tmp_path / "store"
    store = MessageStore.open(store_config(root))
    lines = write_ours(store, (LOOPBACK, port), MESSAGES[ending])
    # A store that was not closed, as a killed process leaves it.
    store.close() if ending == "closed" else store.abandon()
    write_topics(root)
    with apache_broker(version, namesrv.address, store_dir=root, port=port, graceful=False):
        queue_counts = [f"{topic}:{queues}" for topic, queues in TOPICS.items()]
        found = reader.ask("read", namesrv, tmp_path / "read", str(STRIDE), *queue_counts)
    assert len(found) == len(lines)
    assert sorted(found) == sorted(lines)


def read_all(store: MessageStore, topic: str, queues: int) -> dict[tuple[int, int], memoryview]:
    found: dict[tuple[int, int], memoryview] = {}
    for queue_id in range(queues):
        at = store.min_offset(topic, queue_id)
        while at < store.max_offset(topic, queue_id):
            answer = store.read(topic, queue_id, at, 32)
            assert answer.status is ReadStatus.FOUND
            for record in answer.records:
                found[queue_id, decode_record(record).queue_offset] = record
            at = answer.next_offset
    return found


@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_we_serve_a_store_of_apache_and_apache_continues_it(
    version: str, reader: Reader, ending: str, namesrv: Server, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    port = free_port(-2, 1)
    queue_count = f"{APACHE_TOPIC}:{APACHE_QUEUES}"
    graceful = ending == "stopped"
    # One of the two stores tags codes in units beside the queues (consumequeue_ext).
    theirs = partial(
        apache_broker, version, namesrv.address, store_dir=root, port=port,
        enableConsumeQueueExt=str(graceful).lower(), mappedFileSizeConsumeQueueExt=EXT_FILE_BYTES,
    )  # fmt: skip
    with theirs(graceful=graceful):
        sent = reader.ask("write", namesrv, tmp_path / "sent", queue_count, str(APACHE_MESSAGES))
        described = reader.ask("read", namesrv, tmp_path / "read", "1000000", queue_count)
    assert len(described) == len(sent) > APACHE_MESSAGES
    with MessageStore.open(store_config(root, ext=graceful)) as store:
        assert store.report.clean == graceful
        assert not [note for note in store.report.notes if "made again" in note]
        found = read_all(store, APACHE_TOPIC, APACHE_QUEUES)
        check_codes(store, found, ext=graceful)
        assert len(found) == len(sent)
        check_lookups(store, found, sent)
        done = store.append(
            Draft(APACHE_TOPIC, 0, b"from us", "", 0, BORN_HOSTS[0], (LOOPBACK, port))
        )
        assert done.queue_offset == 1 + max(offset for queue, offset in found if queue == 0)
    with theirs(graceful=False):
        again = reader.ask("read", namesrv, tmp_path / "again", str(STRIDE), queue_count)
    added = set(again) - set(described)
    assert set(described) <= set(again)
    assert [line.split("\t")[2] for line in added] == [str(done.queue_offset)]


def check_codes(
    store: MessageStore, found: dict[tuple[int, int], memoryview], *, ext: bool
) -> None:
    """Each entry has the code of its message's tags, in itself or in a unit."""
    for (queue_id, queue_offset), record in found.items():
        queue = store.queues.get(APACHE_TOPIC, queue_id)
        assert queue is not None
        entry, raw = queue.entry(queue_offset), next(queue.raw_entries(queue_offset, 1))
        assert entry is not None
        assert entry[2] == properties.tags_code(decode_record(record).tags)
        assert is_address(raw[2]) == ext


def check_lookups(
    store: MessageStore, found: dict[tuple[int, int], memoryview], sent: list[str]
) -> None:
    """Each acknowledged message is found by its offset, its keys and its unique key."""
    now_ms = time.time_ns() // 1_000_000
    for line in sent:
        _, queue_id, queue_offset, keys, unique, tags = line.split("\t")
        record = found[int(queue_id), int(queue_offset)]
        stored = decode_record(record)
        assert stored.properties["KEYS"] == keys
        assert stored.properties["UNIQ_KEY"] == unique
        assert stored.properties.get("TAGS", "null") == tags
        at = store.record_at(stored.log_offset)
        assert at is not None
        assert bytes(at) == bytes(record)
        for key in (*keys.split(), unique):
            hits = store.query(APACHE_TOPIC, key, 0, now_ms, 10)
            assert bytes(record) in [bytes(hit) for hit in hits], key
