"""A program that appends to a store and cuts its log again and again, until it is killed.

    python -m tests.support.truncating_writer ROOT SEED

It says "begun" before it opens the store, and after each truncation where the log ends.
"""

import random
import sys
from dataclasses import replace
from pathlib import Path

from tests.support.store import Ticker, draft, small_config
from tianzhou.store.config import StoreConfig
from tianzhou.store.message_store import MessageStore
from tianzhou.store.truncation.record import Truncation

CONTENT = "1\n0\n1-0\n"


def config_of(root: Path) -> StoreConfig:
    config = small_config(root, log_file_bytes=16_384)
    return replace(config, max_hash_slot_num=50, max_index_num=300)


def main(root: str, seed: str) -> None:
    dice = random.Random(int(seed))
    print("begun", flush=True)  # noqa: T201 - read by the test
    store = MessageStore.open(config_of(Path(root)), clock=Ticker())
    store.truncation.finish()
    ends = [store.end_log_offset]
    while True:
        for _ in range(dice.randint(1, 60)):
            topic, key = dice.choice(("orders", "bills")), f"k{dice.randrange(99)}"
            body = dice.randbytes(dice.choice((1, 90, 900)))
            done = store.append(draft(topic, dice.randrange(3), body, key=key))
            ends.append(done.end_log_offset)
        to = dice.choice(ends[-40:])
        store.truncation.run(Truncation(to=to, files={"epochFileCheckpoint": CONTENT}), confirm=0)
        store.truncation.finish()
        ends = [end for end in ends if end <= to]
        print(to, flush=True)  # noqa: T201 - read by the test


if __name__ == "__main__":
    main(*sys.argv[1:])
