"""Drive every decoder, and access control, with mutated inputs.

    python -m tests.fuzz.run --count 1000000 [--only "access control"]

A decoder may return or raise ProtocolError. Anything else is a finding: another exception, a batch
of inputs that takes longer than its deadline, or memory beyond the ceiling (the process runs under
an address-space limit, so an unbounded allocation becomes a MemoryError and names its input).
"""

import argparse
import logging
import resource
import signal
import sys
from collections.abc import Sequence
from random import Random
from types import FrameType

from rich.progress import Progress

from tests.fuzz.mutation import mutate
from tests.fuzz.targets import TARGETS, Target, close
from tianzhou.errors import ProtocolError

BATCH = 1000
BATCH_DEADLINE_S = 60
MEMORY_CEILING_BYTES = 2 * 1024**3


class FuzzFinding(AssertionError):
    """A decoder did something other than return or refuse."""


def fuzz(target: Target, count: int, seed: int) -> tuple[int, int]:
    """Run `count` mutated inputs; returns how many were decoded and how many refused."""
    random = Random(f"{target.name}-{seed}")
    corpus = target.corpus()
    answered = refused = 0
    for _ in range(count):
        data = mutate(random, random.choice(corpus), random.choice(corpus))
        try:
            target.decode(data)
            answered += 1
        except ProtocolError:
            refused += 1
        except BaseException as e:
            raise FuzzFinding(f"{target.name}: {e!r} on {data.hex()}") from e
    return answered, refused


def _too_slow(signum: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"a batch of {BATCH} inputs took more than {BATCH_DEADLINE_S} s")


def fuzz_in_batches(target: Target, count: int, seed: int, progress: Progress) -> tuple[int, int]:
    task = progress.add_task(target.name, total=count)
    answered = refused = done = 0
    while done < count:
        size = min(BATCH, count - done)
        signal.alarm(BATCH_DEADLINE_S)
        batch_answered, batch_refused = fuzz(target, size, seed + done)
        signal.alarm(0)
        answered += batch_answered
        refused += batch_refused
        done += size
        progress.update(task, completed=done)
    return answered, refused


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000, help="inputs for each decoder")
    parser.add_argument("--seed", type=int, default=1, help="another seed gives other inputs")
    parser.add_argument("--only", help="one decoder: " + ", ".join(t.name for t in TARGETS))
    options = parser.parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_CEILING_BYTES, MEMORY_CEILING_BYTES))
    signal.signal(signal.SIGALRM, _too_slow)
    chosen = [t for t in TARGETS if options.only in (None, t.name)]
    if not chosen:
        parser.error(f"no decoder is called {options.only}")
    # The broker would log a line for each refused request.
    logging.disable(logging.CRITICAL)
    try:
        with Progress() as progress:
            for target in chosen:
                answered, refused = fuzz_in_batches(target, options.count, options.seed, progress)
                progress.console.print(
                    f"{target.name:<20} {answered:>9} answered {refused:>9} refused"
                )
    finally:
        close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
