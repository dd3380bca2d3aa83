"""A writer killed at any moment loses nothing that it acknowledged."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import store_writer
from tests.support.gate import some_of
from tests.support.store import queues_of, read_queue
from tests.support.store_writer import Kind
from tianzhou.store.message_store import MessageStore

ROOT = Path(__file__).resolve().parents[2]
KILLS_A_STORE = 12
STORES = 10
"""Of each kind of writer, so 360 kills in all."""
TIMEOUT_S = 60

Promised = dict[tuple[str, int, int], tuple[bytes, int]]
"""Body and log offset by topic, queue and queue offset."""


class Writers:
    """Starts and kills writers."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def kill_one(self, root: Path, kind: Kind, seed: int) -> Promised:
        """Start a writer, kill it after some lines; returns what it acknowledged."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        wanted = random.Random(seed).choice((0, 1, 5, 20, 60, 200))
        self._process.stdin.write(f"{root} {kind.value} {seed}\n".encode())
        self._process.stdin.flush()
        process_id = int(self._process.stdout.readline())
        said = [self._process.stdout.readline() for _ in range(wanted)]
        os.kill(process_id, signal.SIGKILL)
        # What is in the pipe was written before the kill.
        said += iter(self._process.stdout.readline, store_writer.END)
        promised: Promised = {}
        for line in said:
            topic, queue_id, queue_offset, log_offset, body = line.split()
            promised[topic.decode(), int(queue_id), int(queue_offset)] = (body, int(log_offset))
        assert len(promised) == len(said)
        return promised


@pytest.fixture(scope="module")
def writers() -> Iterator[Writers]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.store_writer"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    ) as process:
        yield Writers(process)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(TIMEOUT_S)


@pytest.mark.parametrize("case", some_of(range(STORES), 5))
@pytest.mark.parametrize("kind", list(Kind))
def test_nothing_acknowledged_is_lost_by_kills(
    writers: Writers, tmp_path: Path, kind: Kind, case: int
) -> None:
    promised: Promised = {}
    for kill in range(KILLS_A_STORE):
        new = writers.kill_one(tmp_path, kind, case * KILLS_A_STORE + kill)
        assert not promised.keys() & new.keys()
        promised |= new
        if kill % 3 == 0:
            continue  # The next writer recovers by itself.
        with MessageStore.open(store_writer.config(tmp_path, kind), background=False) as store:
            stored = {
                (topic, queue_id, queue_offset): value
                for topic, queue_id in queues_of(store)
                for queue_offset, value in read_queue(store, topic, queue_id).items()
            }
            assert promised.items() <= stored.items()
            assert len(stored) == sum(store.max_offset(*queue) for queue in queues_of(store))
            bodies = [body for body, _ in stored.values()]
            assert len(bodies) == len(set(bodies))
            if new:  # it had opened the store, so no recovery was interrupted
                assert not [note for note in store.report.notes if "made again" in note]
    assert len(promised) > KILLS_A_STORE
