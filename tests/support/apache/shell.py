"""Stock clients and tools in a long-running JVM; java/JsonProgram.java is its program."""

import json
import queue
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from tests.support.apache.jvm import CLIENT_OPTIONS, java_command, make_home
from tests.support.apache.processes import LOG_TAIL_LINES, STOP_TIMEOUT_S

MQADMIN_TRIES = 10
TOO_LATE = re.compile("RemotingTimeoutException|RemotingSendRequestException")


class Shell:
    """A JVM that executes requests; see java/JsonProgram.java for their format."""

    def __init__(self, version: str, home: Path, command: Sequence[str]) -> None:
        self.version = version
        self.home = home
        self.messages: list[dict[str, Any]] = []
        self.answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.request_count = 0
        with (home / "stderr.log").open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=home,
                text=True,
                encoding="utf-8",
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.requests: IO[str] = self.process.stdin
        self.reader = threading.Thread(target=self.read, args=(self.process.stdout,), daemon=True)
        self.reader.start()

    def read(self, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                parsed = json.loads(line)
                if parsed.get("event") == "message":
                    self.messages.append(parsed)
                else:
                    self.answers.put(parsed)

    def ask(self, verb: str, *, timeout_s: float = 180, **arguments: object) -> Any:  # noqa: ANN401 - whatever JSON holds
        """Send one request and wait for its response; raises errors of the Java program."""
        self.request_count += 1
        request = {"id": self.request_count, "verb": verb, **arguments}
        self.requests.write(json.dumps(request) + "\n")
        self.requests.flush()
        try:
            answer = self.answers.get(timeout=timeout_s)
        except queue.Empty:
            raise AssertionError(
                f"no answer to {request} in {timeout_s} s: {self.report()}"
            ) from None
        assert answer["id"] == self.request_count, f"{answer} does not answer {request}"
        if "error" in answer:
            raise AssertionError(f"{request} failed: {answer['error']}")
        return answer["result"]

    def report(self) -> str:
        errors = (self.home / "stderr.log").read_text(errors="replace").splitlines()
        return "\n".join([f"exit code {self.process.poll()}", *errors[-LOG_TAIL_LINES:]])

    def mqadmin(
        self, namesrv: str, *arguments: str, timeout_s: float = 180, interrupt_after_ms: int = 0
    ) -> str:
        """The output of `mqadmin ARGUMENTS -n NAMESRV`; 0 means no time limit.

        The tool waits three seconds for a response, which may be too short on a busy machine; then
        the command is repeated.
        """
        output = ""
        for _ in range(MQADMIN_TRIES):
            output = self.ask(
                "admin",
                args=[*arguments, "-n", namesrv],
                interrupt_after_ms=interrupt_after_ms,
                timeout_s=timeout_s,
            )
            if not TOO_LATE.search(output):
                break
        return output

    def start_producer(self, name: str, namesrv: str, *, group: str = "kit-producers") -> None:
        self.ask("start_producer", name=name, group=group, namesrv=namesrv, timeout_ms=10_000)

    def send(
        self, name: str, topic: str, bodies: Sequence[str], *, tags: str = "", keys: str = ""
    ) -> list[dict[str, Any]]:
        """Send each body synchronously; returns the results in the same order."""
        sent: list[dict[str, Any]] = self.ask(
            "send", name=name, topic=topic, bodies=list(bodies), tags=tags, keys=keys
        )
        return sent

    def start_consumer(
        self, name: str, namesrv: str, *, group: str, topic: str, tags: str = "*"
    ) -> None:
        """A push consumer from the first message on; `messages` returns what it received."""
        self.ask("start_consumer", name=name, namesrv=namesrv, group=group, topic=topic, tags=tags)

    def consumed(self, name: str) -> list[dict[str, Any]]:
        return [message for message in list(self.messages) if message["consumer"] == name]

    def forget(self, name: str) -> None:
        """Drop what a consumer received; only while no consumer runs."""
        self.messages = [message for message in self.messages if message["consumer"] != name]

    def close(self) -> None:
        """Closing its input ends the program."""
        self.requests.close()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_TIMEOUT_S)
        self.reader.join(STOP_TIMEOUT_S)


@contextmanager
def java_shell(
    version: str, program: str = "Shell", *, jvm_options: Sequence[str] = ()
) -> Generator[Shell]:
    """A program of java/ that accepts requests; it ends with the block."""
    with tempfile.TemporaryDirectory(prefix="apache-shell-") as directory:
        home = make_home(Path(directory))
        # The later of two options with the same name applies.
        options = [*CLIENT_OPTIONS, *jvm_options]
        shell = Shell(version, home, [*java_command(version, home, options), program])
        try:
            shell.ask("ping")
            yield shell
        finally:
            shell.close()


@contextmanager
def java_shells(
    program: str = "Shell", *, jvm_options: Sequence[str] = ()
) -> Generator[Callable[[str], Shell]]:
    """The program with the stock classes of a version, started on first use."""
    started: dict[str, Shell] = {}
    with ExitStack() as stack:

        def shell(version: str) -> Shell:
            if version not in started:
                one = java_shell(version, program, jvm_options=jvm_options)
                started[version] = stack.enter_context(one)
            return started[version]

        yield shell
