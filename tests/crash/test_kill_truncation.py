"""A process that is killed at any moment of a truncation, again and again."""

import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.copied_log import derived_of
from tests.support.gate import some_of
from tests.support.truncating_writer import CONTENT, config_of
from tianzhou.store.message_store import MessageStore

ROOT = Path(__file__).resolve().parents[2]
KILLS = 4


def killed(store: Path, seed: int, dice: random.Random) -> None:
    """Runs the program, and kills it while it starts, or somewhere in its truncations."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.truncating_writer", str(store), str(seed)],
        cwd=ROOT, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for _ in range(dice.choice((1, 1, 2, 5, 20))):
            assert process.stdout.readline(), "it ended by itself"
        # Any moment is a good one; nothing is waited for.
        time.sleep(dice.random() * 0.03)
        process.kill()


def check(store: Path) -> None:
    with MessageStore.open(config_of(store)) as opened:
        if opened.truncation.pending is not None:
            assert opened.end_log_offset == opened.truncation.pending.to
            assert (store / "epochFileCheckpoint").read_text() == CONTENT
            opened.truncation.finish()
        derived = derived_of(opened)
        end = opened.end_log_offset
        for queue in opened.queues.all():
            for at in range(queue.next_offset):
                entry = queue.entry(at)
                assert entry is not None
                fields = opened.log.decode(entry[0])
                assert fields is not None
                assert fields[:1] + fields[3:5] == (queue.topic, queue.queue_id, at)
    again = store.with_name("again")
    shutil.copytree(store, again)
    with MessageStore.open(config_of(again), rebuild=True) as rebuilt:
        assert rebuilt.end_log_offset == end
        assert derived_of(rebuilt) == derived
    shutil.rmtree(again)


@pytest.mark.parametrize("case", some_of(range(20), 20))
def test_a_store_that_is_killed_while_it_is_cut_stays_whole(tmp_path: Path, case: int) -> None:
    dice = random.Random(case)
    store = tmp_path / "store"
    for number in range(KILLS):
        killed(store, case * KILLS + number, dice)
        if number % 2:
            check(store)
    check(store)
