"""Programs that write into a store until they are killed, and print what was acknowledged.

    python -m tests.support.store_writer

is a fork server for such programs, so that a restart is cheap. For each line on stdin (directory,
kind, seed) it forks a writer. That prints its process id; then each line on stdout is one promised
message: topic, queue, queue offset, log offset, body. When the writer is dead the server prints
`end`.

With SYNC_FLUSH and ASYNC_FLUSH what was acknowledged is promised; with STAGED, which is ASYNC_FLUSH
with a staging pool, what can be read.
"""

import os
import random
import sys
from collections import deque
from enum import StrEnum
from functools import partial
from pathlib import Path

from tests.support.store import draft
from tianzhou.errors import StoreError
from tianzhou.store.config import FlushDiskType, StoreConfig
from tianzhou.store.message_store import MessageStore

MESSAGES_MAX = 200_000
END = b"end\n"


class Kind(StrEnum):
    """Which messages a writer promises."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"
    STAGED = "STAGED"


def config(root: Path, kind: Kind) -> StoreConfig:
    """Small files, so that a kill may happen while one of them is being created."""
    staged = kind is Kind.STAGED
    return StoreConfig(
        store_path_root_dir=root, mapped_file_size_commit_log=1 << 16,
        mapped_file_size_consume_queue=2000, max_hash_slot_num=50, max_index_num=500,
        flush_disk_type=FlushDiskType.ASYNC_FLUSH if staged else FlushDiskType(kind),
        transient_store_pool_enable=staged, transient_store_pool_size=2,
        commit_interval_commit_log=3, commit_commit_log_thorough_interval=9,
        flush_interval_consume_queue=20, flush_consume_queue_thorough_interval=100,
    )  # fmt: skip


def say(line: bytes, reason: StoreError | None) -> None:
    # A line is shorter than PIPE_BUF, so it is written completely or not at all.
    if reason is None:
        os.write(1, line)


def write(root: Path, kind: Kind, seed: int) -> None:
    dice = random.Random(seed)
    say(b"%d\n" % os.getpid(), None)
    store = MessageStore.open(config(root, kind))
    staged: deque[tuple[int, bytes]] = deque()
    for number in range(MESSAGES_MAX):
        body = b"%d-%d." % (seed, number) * dice.randint(1, 40)
        one = draft(dice.choice("ab"), dice.randrange(4), body, key=f"{seed}-{number}")
        done = store.append(one)
        head = f"{one.topic} {one.queue_id} {done.queue_offset} {done.log_offset} "
        line = head.encode() + body + b"\n"
        if kind is Kind.SYNC_FLUSH:
            store.when_flushed(done.end_log_offset, partial(say, line))
        elif kind is Kind.ASYNC_FLUSH:
            say(line, None)
        else:
            staged.append((done.end_log_offset, line))
            while staged and staged[0][0] <= store.end_log_offset:
                say(staged.popleft()[1], None)
    store.close()


def serve() -> None:
    for line in sys.stdin:
        root, kind, seed = line.split()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                write(Path(root), Kind(kind), int(seed))
                code = 0
            finally:
                os._exit(code)
        os.waitpid(child, 0)
        say(END, None)


if __name__ == "__main__":
    serve()
