"""The demonstration of `tianzhou up --demo`, in this order:

    a few messages, one by one      increasing load, measured      a plot, as PNG
    a Spark job over the topic      commands to try next           one message a second

It is an ordinary client: a producer and a consumer that get the nameserver's address. A step whose
extra is not installed is skipped with a line that says so.
"""

import asyncio
import contextlib
import importlib.util
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tianzhou.admin import Admin
from tianzhou.cli.demo import plot
from tianzhou.cli.demo.figures import Measurements
from tianzhou.cli.shared.context_file import DEFAULT_NAMESRV, contexts_path, load_contexts, resolve
from tianzhou.client import Message, Producer, PushConsumer, ReceivedMessage
from tianzhou.clock import wall_ms
from tianzhou.errors import TianzhouError
from tianzhou.names import MASTER_ID, PERM_READ, PERM_WRITE
from tianzhou.protocol.bodies.topics import TopicConfig

TOPIC = "TianzhouDemo"
GROUP = "tianzhou_demo"
QUEUES = 4
FIRST_COUNT = 5
RATES = (250, 500, 1000, 2000, 4000)
"""Messages per second, one after the other."""
STEP_S = 1.6
PLOT = "demo.png"
SPARK_LOG = "demo-spark.log"
SPARK_TIMEOUT_S = 240.0

_FIRST_PAUSE_S = 0.4
_TICK_S = 0.01
_SLOT_S = 0.2
_LATER_PAUSE_S = 1.0
_RETRY_S = 1.0
_ARRIVAL_WAIT_S = 10.0
_BODY = b"cargo, as much as a short order or a reading of a meter is, with some words around it; "

Say = Callable[[str], None]


class Demo:
    """Runs every step once, then sends a message a second until cancelled."""

    def __init__(self, namesrv_address: str, folder: Path, say: Say) -> None:
        self._namesrv = namesrv_address
        self._folder = folder
        self._say = say
        self._measurements = Measurements()
        self._begun_s: float | None = None
        """When the load began; outside of the load every message is printed."""
        self._is_quiet = False
        self.received_count = 0
        self._sent_count = 0
        self._news = asyncio.Event()

    async def run(self) -> None:
        await self._prepare()
        consumer = PushConsumer(GROUP, namesrv=self._namesrv)
        consumer.subscribe(TOPIC, handler=self._receive)
        async with consumer, Producer(GROUP, namesrv=self._namesrv) as producer:
            since_ms = wall_ms()
            await self._show_first(producer)
            await self._show_load(producer)
            await self._show_plot()
            await self._show_spark(since_ms)
            self._show_next()
            await self._send_until_cancelled(producer)

    async def _prepare(self) -> None:
        """Create the topic and print its route."""
        async with Admin(self._namesrv) as admin:
            config = TopicConfig(
                topic_name=TOPIC, read_queue_count=QUEUES, write_queue_count=QUEUES,
                perm=PERM_READ | PERM_WRITE,
            )  # fmt: skip
            for at in await admin.clusters.brokers(masters=True):
                await admin.topics.put(at, config)
            route = await self._route(admin)
        for name, address in route:
            self._say(f"route of {TOPIC}: {name} at {address}, {QUEUES} queues")

    async def _route(self, admin: Admin) -> list[tuple[str, str]]:
        """The route of the topic; waits until the broker has registered it."""
        deadline_s = time.monotonic() + _ARRIVAL_WAIT_S
        while True:
            try:
                found = await admin.topics.route(TOPIC)
            except TianzhouError:
                if time.monotonic() > deadline_s:
                    raise
                await asyncio.sleep(0.05)
                continue
            return [
                (each.broker_name or "", (each.addresses or {}).get(MASTER_ID, "no address"))
                for each in found.brokers
            ]

    # -- messages ----------------------------------------------------------------------------------

    async def _show_first(self, producer: Producer) -> None:
        queues = await producer.queues(TOPIC)
        for number in range(1, FIRST_COUNT + 1):
            started_s = time.perf_counter()
            queue = queues[number % len(queues)]
            sent = await producer.send(self._message("first", number), queue=queue)
            took_ms = (time.perf_counter() - started_s) * 1000
            self._say(
                f"-> sent     cargo {number} to queue {queue.queue_id}, "
                f"stored at offset {sent.queue_offset} in {took_ms:.1f} ms"
            )
            await asyncio.sleep(_FIRST_PAUSE_S)

    def _message(self, tag: str, number: int) -> Message:
        self._sent_count += 1
        body = b"%d %d " % (number, time.perf_counter_ns()) + _BODY
        return Message(TOPIC, body, tags=tag, keys=f"demo-{number}")

    async def _receive(self, message: ReceivedMessage) -> None:
        number, sent_ns, _ = message.body.split(b" ", 2)
        now_s = time.perf_counter()
        took_ms = now_s * 1000 - int(sent_ns) / 1e6
        self.received_count += 1
        self._news.set()
        if self._begun_s is not None:
            self._measurements.received.append((now_s - self._begun_s, took_ms))
        elif not self._is_quiet:
            self._say(
                f"<- received cargo {int(number)} from queue {message.queue_id}, "
                f"{took_ms:.1f} ms after the send"
            )

    async def _show_load(self, producer: Producer) -> None:
        """Send at increasing rates, and print a line for each."""
        self._say(f"now up to {RATES[-1]:,} messages a second, each sent and received on its own:")
        self._begun_s = time.perf_counter()
        for rate in RATES:
            begin_s = time.perf_counter() - self._begun_s
            await self._send_at(producer, rate)
            seen = self._measurements.between(begin_s, time.perf_counter() - self._begun_s)
            took = "none arrived" if seen.median_ms is None else f"{seen.median_ms:6.1f} ms"
            self._say(
                f"   {rate:5,}/s: {seen.sent_per_s:6,.0f} sent, {seen.received_per_s:6,.0f} "
                f"received per second, median latency {took}"
            )
        await self._arrived()
        self._begun_s = None
        self._is_quiet = True
        self._say(f"   {self._sent_count:,} sent, {self.received_count:,} received")

    async def _send_at(self, producer: Producer, rate: int) -> None:
        """Send evenly at a rate; a producer that cannot keep up sends what it can."""
        assert self._begun_s is not None
        begun_s = time.perf_counter()
        tag = f"{rate}-a-second"
        sent = 0
        answers: list[asyncio.Future[object]] = []
        while (passed_s := time.perf_counter() - begun_s) < STEP_S:
            due = min(int(passed_s * rate) + 1, sent + rate // 10 + 1)
            for number in range(sent, due):
                self._measurements.sent_s.append(time.perf_counter() - self._begun_s)
                answers.append(await producer.submit(self._message(tag, number)))  # type: ignore[arg-type]
            sent = max(sent, due)
            await asyncio.sleep(_TICK_S)
        await asyncio.gather(*answers)

    async def _arrived(self) -> None:
        """Wait until the consumer has received everything, or for 10 s."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ARRIVAL_WAIT_S):
                while self.received_count < self._sent_count:
                    self._news.clear()
                    await self._news.wait()

    async def _send_until_cancelled(self, producer: Producer) -> None:
        """Keep sending, so that commands have something to show."""
        number = 0
        while True:
            number += 1
            await producer.send(self._message("later", number))
            await asyncio.sleep(_LATER_PAUSE_S)

    # -- plot, Spark, next steps -------------------------------------------------------------------

    async def _show_plot(self) -> None:
        path = self._folder / PLOT
        intervals = self._measurements.intervals(_SLOT_S)
        title = "Tianzhou: one broker, one producer, one consumer, in one process"
        try:
            await asyncio.to_thread(plot.save, path, intervals, title)
        except ImportError:
            self._say(
                f"no plot: matplotlib is not installed; install it with {_install('matplotlib')}"
            )
            return
        self._say(f"messages per second and latency as a plot: {_shown(path)}")

    async def _show_spark(self, since_ms: int) -> None:
        if not _has_spark():
            self._say(f"no Spark job: Spark is not installed; install it with {_way_to_spark()}")
            return
        self._say(
            "starting Spark, which reads the same messages from the broker (some seconds) ..."
        )
        log = self._folder / SPARK_LOG
        with log.open("wb") as errors:
            job = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tianzhou.spark.demo", self._namesrv, TOPIC, str(since_ms),
                stdout=asyncio.subprocess.PIPE, stderr=errors,
                # Ctrl-C in the terminal goes to the servers, which then end this job.
                start_new_session=True,
            )  # fmt: skip
        try:
            shown, _ = await asyncio.wait_for(job.communicate(), SPARK_TIMEOUT_S)
        except TimeoutError:
            self._say(f"the Spark job timed out; its log is {_shown(log)}")
            return
        finally:
            if job.returncode is None:
                os.killpg(job.pid, signal.SIGTERM)
                await job.wait()
        if job.returncode:
            self._say(f"the Spark job failed; its log is {_shown(log)}")
            return
        for line in shown.decode().splitlines():
            self._say(line)

    def _show_next(self) -> None:
        self._say(
            f"one message a second is sent from now on; try these commands in another terminal, in "
            f"the folder {Path.cwd()}:"
        )
        for command in next_commands(self._namesrv, has_spark=_has_spark()):
            self._say(f"   {command}")
        self._say("Ctrl-C stops everything; the messages stay in the data folder")


def next_commands(namesrv: str, *, has_spark: bool) -> list[str]:
    """Commands to try next, in the folder where this program was started."""
    target = resolve(None, None, os.environ, load_contexts(contexts_path())).namesrv
    more = "" if target == namesrv == DEFAULT_NAMESRV else f" --namesrv {namesrv}"
    commands = [f"cluster top{more}", f"topic show {TOPIC}{more}", f"message tail {TOPIC}{more}"]
    if has_spark:
        commands.append(f"pipeline run topic-stats --set days=today{more}")
    return [f"{_program()} {each}" for each in (*commands, "--help")]


def _program() -> str:
    """The command that runs this program from a shell without its virtual environment."""
    script = Path(sys.executable).parent / "tianzhou"
    if not script.is_file():
        return f"{_python()} -m tianzhou"
    on_path = shutil.which("tianzhou")
    if on_path is not None and Path(on_path).resolve() == script.resolve():
        return "tianzhou"
    return shlex.quote(_shown(script))


def _python() -> str:
    return shlex.quote(_shown(Path(sys.executable)))


def _install(package: str) -> str:
    return f"`{_python()} -m pip install {package}`"


def _way_to_spark() -> str:
    return "`make demo-spark`" if Path("Makefile").is_file() else _install("pyspark")


def _has_spark() -> bool:
    return importlib.util.find_spec("pyspark") is not None


def _shown(path: Path) -> str:
    """The path relative to the current folder, if it is below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


async def keep_running(namesrv_address: str, folder: Path, say: Say) -> None:
    """Run the demonstration; on an error print it and retry."""
    while True:
        try:
            await Demo(namesrv_address, folder, say).run()
        except TianzhouError as e:
            say(f"the demonstration failed: {e}; retrying in a second")
        await asyncio.sleep(_RETRY_S)
