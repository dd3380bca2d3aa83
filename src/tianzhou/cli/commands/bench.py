"""`tianzhou bench`: throughput and latency of sending and receiving, measured by one client.

One client does not reach the limits of a cluster: run several to find those.
"""

import asyncio
import math
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tianzhou.admin.messages import QueueRef
from tianzhou.cli.shared.command import Session, command
from tianzhou.cli.shared.common_options import Topic
from tianzhou.cli.shared.output import CommandResult, bar_width, format_size, key_values
from tianzhou.cli.shared.parameters import option
from tianzhou.client import Producer
from tianzhou.errors import ConfigError, TargetError, TianzhouError

app = typer.Typer(
    name="bench", no_args_is_help=True, help="Measure throughput and latency of a cluster."
)

PERCENTILES = (50, 90, 99, 99.9)
_STEP = math.log(1.01)
"""Width of a histogram bucket: one percent."""
_SHORTEST_MS = 0.001


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The result of a run."""

    messages: int
    failures: int
    seconds: float
    per_second: float
    bytes_per_second: float
    latency_ms: dict[str, float]
    first_error: str | None


class LatencyHistogram:
    """Counts latencies in buckets, so that memory does not grow with the length of a run.

    >>> times = LatencyHistogram()
    >>> for each_ms in (1.0, 2.0, 3.0, 4.0):
    ...     times.add(each_ms)
    >>> round(times.percentiles()["p50"]), times.percentiles()["max"]
    (2, 4.0)
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._max_ms = 0.0

    def add(self, took_ms: float) -> None:
        self._counts[round(math.log(max(took_ms, _SHORTEST_MS)) / _STEP)] += 1
        self._max_ms = max(self._max_ms, took_ms)

    def percentiles(self) -> dict[str, float]:
        """Percentiles, exact to one percent, and the maximum."""
        total = self._counts.total()
        if not total:
            return {}
        found: dict[str, float] = {}
        reached, wanted = 0, list(PERCENTILES)
        for step, count in sorted(self._counts.items()):
            reached += count
            while wanted and reached >= max(round(total * wanted[0] / 100), 1):
                found[f"p{wanted.pop(0):g}"] = min(math.exp(step * _STEP), self._max_ms)
        return found | {"max": self._max_ms}


def _bar(session: Session) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(bar_width(session.err)),
        TextColumn("{task.completed:,.0f}"),
        TextColumn("{task.fields[rate]}"), TimeRemainingColumn(), console=session.err,
        transient=True, disable=not session.err.is_terminal,
    )  # fmt: skip


class Meter:
    """Counts messages, bytes, latencies and failures during a run."""

    def __init__(self, bar: Progress, what: str, total: int | None) -> None:
        self.count = 0
        self.count_bytes = 0
        self.failures = 0
        self.first_error: str | None = None
        self._times = LatencyHistogram()
        self._bar = bar
        self._task = bar.add_task(what, total=total, rate="")
        self._started_s = time.perf_counter()

    def one(self, size_bytes: int, took_ms: float | None) -> None:
        self.count += 1
        self.count_bytes += size_bytes
        if took_ms is not None:
            self._times.add(took_ms)
        if self.count % 64 == 0:
            elapsed_s = max(time.perf_counter() - self._started_s, 1e-9)
            rate = f"{self.count / elapsed_s:,.0f}/s"
            self._bar.update(self._task, completed=self.count, rate=rate)

    def failed(self, why: TianzhouError) -> None:
        self.failures += 1
        self.first_error = self.first_error or str(why)

    def result(self) -> BenchResult:
        elapsed_s = max(time.perf_counter() - self._started_s, 1e-9)
        return BenchResult(
            messages=self.count,
            failures=self.failures,
            seconds=elapsed_s,
            per_second=self.count / elapsed_s,
            bytes_per_second=self.count_bytes / elapsed_s,
            latency_ms=self._times.percentiles(),
            first_error=self.first_error,
        )


def _result(measured: BenchResult, title: str) -> CommandResult:
    rows = [
        ("messages", f"{measured.messages:,} in {measured.seconds:.2f} s"),
        ("rate", f"{measured.per_second:,.0f}/s, {format_size(measured.bytes_per_second)}/s"),
        *((f"latency {name}", f"{ms:,.2f} ms") for name, ms in measured.latency_ms.items()),
    ]
    if measured.failures:
        rows.append(("failures", f"{measured.failures:,}, the first: {measured.first_error}"))
    return CommandResult(
        asdict(measured), [key_values(rows, title=title)], exit_code=1 if measured.failures else 0
    )


@command(
    app, "send", reads=True,
    examples=[
        "tianzhou bench send orders --count 100000 --size 1024 --concurrency 64",
        "tianzhou bench send orders --seconds 30 --json",
    ],
)  # fmt: skip
async def send(
    session: Session,
    topic: Topic,
    count: Annotated[
        int | None, option("--count", "Messages to send; 10,000 by default.", min=1)
    ] = None,
    seconds: Annotated[
        float | None, option("--seconds", "Send for this time instead.", min=0.1, max=86_400)
    ] = None,
    size_bytes: Annotated[
        int, option("--size", "Body size in bytes.", min=1, max=4 * 1024 * 1024)
    ] = 1024,
    concurrency: Annotated[int, option("--concurrency", "Concurrent sends.", min=1, max=4096)] = 32,
    tag: Annotated[str | None, option("--tag", "Tag of the messages.")] = None,
) -> CommandResult:
    """Send messages as fast as possible; print throughput and latency percentiles.

    Exit code 1 if a send failed.
    """
    if count is not None and seconds is not None:
        raise ConfigError("--count and --seconds exclude each other")
    await session.admin.topics.route(topic)
    total = None if seconds is not None else count or 10_000
    body = b"x" * size_bytes
    left = iter(range(total)) if total is not None else None
    with _bar(session) as bar:
        meter = Meter(bar, "sending", total)
        async with Producer("tianzhou_bench", settings=session.client_settings()) as producer:
            deadline_s = time.perf_counter() + (seconds or 0)

            def is_running() -> bool:
                if left is not None:
                    return next(left, None) is not None
                return time.perf_counter() < deadline_s

            async def work() -> None:
                while is_running():
                    started_s = time.perf_counter()
                    try:
                        await producer.send(topic, body, tags=tag)
                    except TianzhouError as e:
                        meter.failed(e)
                    else:
                        meter.one(size_bytes, (time.perf_counter() - started_s) * 1000)

            await asyncio.gather(*(work() for _ in range(concurrency)))
            measured = meter.result()
    return _result(
        measured, f"Sent to {topic}: {format_size(size_bytes)} bodies, {concurrency} at a time"
    )


@command(
    app, "receive", reads=True,
    examples=[
        "tianzhou bench receive orders                 # everything stored",
        "tianzhou bench receive orders --live --seconds 30",
    ],
)  # fmt: skip
async def receive(
    session: Session,
    topic: Topic,
    count: Annotated[
        int | None, option("--count", "Messages to receive; all by default.", min=1)
    ] = None,
    seconds: Annotated[float, option("--seconds", "Maximum duration.", min=0.1, max=86_400)] = 60.0,
    live: Annotated[
        bool, option("--live", "Wait for new messages and measure their latency.")
    ] = False,
) -> CommandResult:
    """Receive messages from all queues at once; commits no offset, disturbs no consumer.

    With --live the latency is from send to receive, by the clocks of both machines.
    """
    messages, offsets = session.admin.messages, session.admin.offsets
    queues = await messages.read_queues(topic)
    if not queues:
        raise TargetError(f"topic {topic} has no queue to read")
    ends = [await offsets.end(at.broker, topic, at.queue_id) for at in queues]
    begins = [await offsets.begin(at.broker, topic, at.queue_id) for at in queues]
    stored_count = sum(ends) - sum(begins)
    total = count if live else min(count or stored_count, stored_count)
    with _bar(session) as bar:
        meter = Meter(bar, "receiving", total)
        full = asyncio.Event()

        async def read(at: QueueRef, start: int, end: int) -> None:
            while (live or start < end) and not full.is_set():
                pulled = await messages.pull(at, start, hold_ms=5_000 if live else 0)
                now_ms = time.time_ns() / 1e6
                for message in pulled.messages:
                    if full.is_set():
                        return
                    took_ms = now_ms - message.born_time_ms if live else None
                    meter.one(len(message.body), took_ms)
                    if total is not None and meter.count >= total:
                        full.set()
                start = pulled.next_offset

        starts = ends if live else begins
        readers = [
            asyncio.create_task(read(at, start, end))
            for at, start, end in zip(queues, starts, ends, strict=True)
        ]
        if total == 0:
            full.set()
        enough = asyncio.create_task(full.wait())
        everyone = asyncio.gather(*readers)
        await asyncio.wait((enough, everyone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        measured = meter.result()
        failure = everyone.exception() if everyone.done() else None
        for task in (enough, *readers):
            task.cancel()
        # `everyone` too: asyncio prints a failure that is never retrieved.
        await asyncio.gather(enough, everyone, *readers, return_exceptions=True)
        if isinstance(failure, TianzhouError):
            raise failure
    return _result(measured, f"Received from {topic}: {len(queues)} queues")
