"""The shared timer and the shared memory limits, with fake connections."""

import asyncio
import logging
import time
from dataclasses import dataclass, field

import pytest

from tianzhou.remoting.limits import Limits
from tianzhou.remoting.pending_requests import NEVER_S
from tianzhou.remoting.shared_state import SharedState


@dataclass(eq=False)
class ManagedConnection:
    """A connection that records calls."""

    shared: "SharedState[ManagedConnection]"
    kept_bytes: int = 0
    counted_bytes: int = 0
    unsent_bytes: int = 0
    host: str = "10.0.0.1"
    deadline_s: float = NEVER_S
    sweeps_s: list[float] = field(default_factory=list[float])
    cuts: list[str] = field(default_factory=list[str])

    def cut(self, reason: str) -> None:
        self.cuts.append(reason)
        self.shared.kept_bytes -= self.kept_bytes
        self.shared.unsent_bytes -= self.counted_bytes
        self.kept_bytes = self.counted_bytes = 0

    def count_unsent(self) -> None:
        self.shared.unsent_bytes += self.unsent_bytes - self.counted_bytes
        self.counted_bytes = self.unsent_bytes

    def abort(self, reason: str) -> None:
        self.cuts.append(reason)
        self.shared.remove(self)

    def sweep(self, now_s: float) -> None:
        self.sweeps_s.append(now_s)

    def expire(self, now_s: float) -> float:
        if self.deadline_s <= now_s:
            self.deadline_s = NEVER_S
        return self.deadline_s


def _board(limits: Limits | None = None) -> SharedState[ManagedConnection]:
    shared: SharedState[ManagedConnection] = SharedState(limits or Limits(), serves=True)
    shared.start()
    return shared


async def _until(line: ManagedConnection, sweep_count: int) -> None:
    deadline_s = time.monotonic() + 60
    while len(line.sweeps_s) < sweep_count:
        assert time.monotonic() < deadline_s, line
        await asyncio.sleep(0.005)


async def test_the_timer_runs_only_while_there_are_connections() -> None:
    shared = _board(Limits(idle_ms=40))
    assert shared.wakes_s == NEVER_S
    line = ManagedConnection(shared)
    shared.add(line)
    assert shared.wakes_s < asyncio.get_running_loop().time() + 0.1
    await _until(line, 3)
    shared.remove(line)
    assert shared.wakes_s == NEVER_S
    seen = len(line.sweeps_s)
    other = ManagedConnection(shared)
    shared.add(other)
    await _until(other, 1)
    assert len(line.sweeps_s) == seen
    shared.remove(other)


async def test_a_nearer_deadline_moves_the_timer_and_a_farther_one_does_not() -> None:
    shared = _board()
    loop = asyncio.get_running_loop()
    line = ManagedConnection(shared)
    shared.add(line)
    first_sweep_s = shared.wakes_s
    line.deadline_s = loop.time() + 0.03
    shared.wake_by(line.deadline_s)
    assert shared.wakes_s == line.deadline_s
    shared.wake_by(loop.time() + 3600)
    assert shared.wakes_s == line.deadline_s
    deadline_s = time.monotonic() + 60
    while line.deadline_s != NEVER_S:
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.005)
    assert shared.wakes_s == first_sweep_s
    assert not line.sweeps_s
    shared.remove(line)


async def test_connections_with_most_unread_bytes_are_cut() -> None:
    shared = _board(Limits(kept_bytes=100))
    lines = [ManagedConnection(shared, kept_bytes=size) for size in (10, 60, 70, 20)]
    for line in lines:
        shared.add(line)
        shared.kept_bytes += line.kept_bytes
    shared.cut_largest_kept()
    assert [bool(line.cuts) for line in lines] == [False, False, True, False]
    assert shared.kept_bytes == 90
    (reason,) = lines[2].cuts
    assert reason == "70 bytes are unread, most of 160 in all; 100 are allowed"
    await shared.cut_rest("over")
    assert not shared.connections


async def test_a_failed_task_is_logged_and_removed(caplog: pytest.LogCaptureFixture) -> None:
    shared = _board()

    async def fail() -> None:
        raise ValueError("a bug")

    shared.run(fail())
    await shared.emptied()
    assert not shared.tasks
    assert caplog.messages == ["a handler's task failed"]


async def test_failures_are_logged_once_a_minute_and_the_rest_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shared = _board()
    for _ in range(5):
        shared.log_failure("kind", "something happened", logging.ERROR)
    assert caplog.messages == ["something happened"]
    await shared.cut_rest("over")
    assert caplog.messages[1:] == ["kind: 4 more since the last such line"]


def test_it_is_bound_to_one_loop() -> None:
    shared: SharedState[ManagedConnection] = SharedState(Limits(), serves=True)

    async def start() -> None:
        shared.start()
        shared.start()

    asyncio.run(start())
    with pytest.raises(RuntimeError, match="two event loops"):
        asyncio.run(start())


async def test_connections_with_most_unsent_bytes_are_cut() -> None:
    shared = _board(Limits(unsent_bytes=100))
    lines = [ManagedConnection(shared, unsent_bytes=size) for size in (10, 60, 70, 20)]
    for line in lines:
        shared.add(line)
    shared.cut_largest_unsent()
    assert [len(line.cuts) for line in lines] == [0, 0, 1, 0]
    assert "70 bytes are unsent, most of 160 in all; 100 are allowed" in lines[2].cuts[0]
    assert shared.unsent_bytes == 90
    # What has left since counts no more.
    lines[1].unsent_bytes = lines[2].unsent_bytes = 0
    shared.cut_largest_unsent()
    assert shared.unsent_bytes == 30
    for line in lines:
        shared.remove(line)


async def test_the_sweep_counts_unsent_bytes() -> None:
    shared = _board(Limits(unsent_bytes=100, idle_ms=40))
    line = ManagedConnection(shared, unsent_bytes=500)
    shared.add(line)
    await _until(line, 1)
    assert len(line.cuts) == 1
    shared.remove(line)


async def test_addresses_are_counted_while_they_have_connections() -> None:
    shared = _board()
    lines = [ManagedConnection(shared, host=host) for host in ("a", "a", "b")]
    for line in lines:
        shared.add(line)
    assert shared.hosts == {"a": 2, "b": 1}
    for line in lines[:1] * 2:
        shared.remove(line)
    assert shared.hosts == {"a": 1, "b": 1}, "a second removal has no effect"
    for line in lines[1:]:
        shared.remove(line)
    assert not shared.hosts
