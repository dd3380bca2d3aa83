"""A program that writes into a store until it is killed, and says what was acknowledged.

    python -m tests.crash.writer DIRECTORY FLUSH_TYPE SEED

Each line on stdout is one acknowledged message: topic, queue, queue offset, log offset, body.
"""

import os
import random
import sys
from functools import partial
from pathlib import Path

from tests.crash.store_kit import draft
from tianzhou.errors import StoreError
from tianzhou.store.config import FlushDiskType, StoreConfig
from tianzhou.store.message_store import MessageStore

MESSAGES_MAX = 200_000


def config(root: Path, flush: FlushDiskType) -> StoreConfig:
    """Small files, so that a kill may come while one of them is being made."""
    return StoreConfig(
        store_path_root_dir=root, mapped_file_size_commit_log=1 << 16,
        mapped_file_size_consume_queue=2000, max_hash_slot_num=50, max_index_num=500,
        flush_disk_type=flush, flush_interval_consume_queue=20,
        flush_consume_queue_thorough_interval=100,
    )  # fmt: skip


def say(line: bytes, reason: StoreError | None) -> None:
    if reason is None:
        os.write(1, line)


def main(root: Path, flush: FlushDiskType, seed: int) -> None:
    dice = random.Random(seed)
    store = MessageStore.open(config(root, flush))
    for number in range(MESSAGES_MAX):
        body = b"%d-%d." % (seed, number) * dice.randint(1, 40)
        one = draft(dice.choice("ab"), dice.randrange(4), body, key=f"{seed}-{number}")
        done = store.append(one)
        place = f"{one.topic} {one.queue_id} {done.queue_offset} {done.log_offset} "
        line = place.encode() + body + b"\n"
        if flush is FlushDiskType.SYNC_FLUSH:
            store.when_flushed(done.end_log_offset, partial(say, line))
        else:
            say(line, None)
    store.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), FlushDiskType(sys.argv[2]), int(sys.argv[3]))
