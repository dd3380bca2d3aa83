"""A writer that is killed at any moment has lost nothing that it acknowledged."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash import writer
from tests.crash.store_kit import queues_of, read_queue
from tianzhou.store.config import FlushDiskType
from tianzhou.store.message_store import MessageStore

ROOT = Path(__file__).resolve().parents[2]
KILLS = 8
TIMEOUT_S = 60


def killed_run(root: Path, flush: FlushDiskType, seed: int) -> list[list[bytes]]:
    """Lets a writer write, kills it after some lines, and gives what it said."""
    lines_wanted = random.Random(seed).choice((1, 5, 50, 300, 900))
    with subprocess.Popen(
        [sys.executable, "-m", "tests.crash.writer", str(root), flush.value, str(seed)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        said: list[bytes] = []
        for line in process.stdout:
            said.append(line)
            if len(said) >= lines_wanted:
                break
        process.kill()
        # What was in the pipe when it died was said before it died.
        said += process.stdout.readlines()
        process.wait(TIMEOUT_S)
    assert len(said) >= lines_wanted
    return [line.split() for line in said if line.endswith(b"\n")]


@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_nothing_acknowledged_is_lost_by_kills(tmp_path: Path, flush: FlushDiskType) -> None:
    promised: dict[tuple[str, int, int], tuple[bytes, int]] = {}
    for seed in range(KILLS):
        for topic, queue_id, queue_offset, log_offset, body in killed_run(tmp_path, flush, seed):
            place = (topic.decode(), int(queue_id), int(queue_offset))
            assert place not in promised
            promised[place] = (body, int(log_offset))
        if seed % 3 == 0:
            continue  # The next writer recovers by itself.
        with MessageStore.open(writer.config(tmp_path, flush), background=False) as store:
            found = {
                (topic, queue_id, queue_offset): value
                for topic, queue_id in queues_of(store)
                for queue_offset, value in read_queue(store, topic, queue_id).items()
            }
            assert promised.items() <= found.items()
            assert len(found) == sum(store.max_offset(*queue) for queue in queues_of(store))
            bodies = [body for body, _ in found.values()]
            assert len(bodies) == len(set(bodies))
            assert not [note for note in store.report.notes if "made again" in note]
    assert len(promised) > KILLS
