"""The shared timer and the shared memory bound, with connections made of values."""

import asyncio
import logging
import time
from dataclasses import dataclass, field

import pytest

from tianzhou.remoting.limits import Limits
from tianzhou.remoting.pending_requests import NEVER_S
from tianzhou.remoting.shared_state import Switchboard


@dataclass(eq=False)
class Line:
    """A connection that notes what is asked of it."""

    board: "Switchboard[Line]"
    kept_bytes: int = 0
    counted_bytes: int = 0
    unsent_bytes: int = 0
    host: str = "10.0.0.1"
    deadline_s: float = NEVER_S
    sweeps_s: list[float] = field(default_factory=list[float])
    cuts: list[str] = field(default_factory=list[str])

    def cut(self, reason: str) -> None:
        self.cuts.append(reason)
        self.board.kept_bytes -= self.kept_bytes
        self.board.unsent_bytes -= self.counted_bytes
        self.kept_bytes = self.counted_bytes = 0

    def count_unsent(self) -> None:
        self.board.unsent_bytes += self.unsent_bytes - self.counted_bytes
        self.counted_bytes = self.unsent_bytes

    def abort(self, reason: str) -> None:
        self.cuts.append(reason)
        self.board.remove(self)

    def sweep(self, now_s: float) -> None:
        self.sweeps_s.append(now_s)

    def expire(self, now_s: float) -> float:
        if self.deadline_s <= now_s:
            self.deadline_s = NEVER_S
        return self.deadline_s


def _board(limits: Limits | None = None) -> Switchboard[Line]:
    board: Switchboard[Line] = Switchboard(limits or Limits(), serves=True)
    board.start()
    return board


async def _until(line: Line, sweep_count: int) -> None:
    deadline_s = time.monotonic() + 60
    while len(line.sweeps_s) < sweep_count:
        assert time.monotonic() < deadline_s, line
        await asyncio.sleep(0.005)


async def test_the_timer_runs_only_while_there_are_connections() -> None:
    board = _board(Limits(idle_ms=40))
    assert board.wakes_s == NEVER_S
    line = Line(board)
    board.add(line)
    assert board.wakes_s < asyncio.get_running_loop().time() + 0.1
    await _until(line, 3)
    board.remove(line)
    assert board.wakes_s == NEVER_S
    seen = len(line.sweeps_s)
    other = Line(board)
    board.add(other)
    await _until(other, 1)
    assert len(line.sweeps_s) == seen
    board.remove(other)


async def test_a_nearer_deadline_moves_the_timer_and_a_farther_one_does_not() -> None:
    board = _board()
    loop = asyncio.get_running_loop()
    line = Line(board)
    board.add(line)
    first_sweep_s = board.wakes_s
    line.deadline_s = loop.time() + 0.03
    board.wake_by(line.deadline_s)
    assert board.wakes_s == line.deadline_s
    board.wake_by(loop.time() + 3600)
    assert board.wakes_s == line.deadline_s
    deadline_s = time.monotonic() + 60
    while line.deadline_s != NEVER_S:
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.005)
    assert board.wakes_s == first_sweep_s
    assert not line.sweeps_s
    board.remove(line)


async def test_the_greediest_are_cut_until_the_rest_fits() -> None:
    board = _board(Limits(kept_bytes=100))
    lines = [Line(board, kept_bytes=size) for size in (10, 60, 70, 20)]
    for line in lines:
        board.add(line)
        board.kept_bytes += line.kept_bytes
    board.relieve()
    assert [bool(line.cuts) for line in lines] == [False, False, True, False]
    assert board.kept_bytes == 90
    (reason,) = lines[2].cuts
    assert reason.startswith("keeps 70 bytes of unfinished frames, most of 160 in all; 100 are")
    await board.cut_rest("over")
    assert not board.connections


async def test_a_task_that_fails_is_logged_and_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    board = _board()

    async def fail() -> None:
        raise ValueError("a bug")

    board.run(fail())
    await board.emptied()
    assert not board.tasks
    assert caplog.messages == ["a handler's task failed"]


async def test_complaints_are_told_once_a_minute_and_the_rest_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    board = _board()
    for _ in range(5):
        board.complain("kind", "something happened", logging.ERROR)
    assert caplog.messages == ["something happened"]
    await board.cut_rest("over")
    assert caplog.messages[1:] == ["kind: 4 more since the last such line"]


def test_it_belongs_to_one_loop() -> None:
    board: Switchboard[Line] = Switchboard(Limits(), serves=True)

    async def start() -> None:
        board.start()
        board.start()

    asyncio.run(start())
    with pytest.raises(RuntimeError, match="this is another"):
        asyncio.run(start())


async def test_those_that_read_least_are_cut_until_the_rest_fits() -> None:
    board = _board(Limits(unsent_bytes=100))
    lines = [Line(board, unsent_bytes=size) for size in (10, 60, 70, 20)]
    for line in lines:
        board.add(line)
    board.relieve_unsent()
    assert [len(line.cuts) for line in lines] == [0, 0, 1, 0]
    assert "70 bytes are unsent, most of 160 in all; 100 are allowed" in lines[2].cuts[0]
    assert board.unsent_bytes == 90
    # What has left since counts no more.
    lines[1].unsent_bytes = lines[2].unsent_bytes = 0
    board.relieve_unsent()
    assert board.unsent_bytes == 30
    for line in lines:
        board.remove(line)


async def test_what_nobody_counted_is_counted_by_the_sweep() -> None:
    board = _board(Limits(unsent_bytes=100, idle_ms=40))
    line = Line(board, unsent_bytes=500)
    board.add(line)
    await _until(line, 1)
    assert len(line.cuts) == 1
    board.remove(line)


async def test_addresses_are_counted_while_they_have_connections() -> None:
    board = _board()
    lines = [Line(board, host=host) for host in ("a", "a", "b")]
    for line in lines:
        board.add(line)
    assert board.hosts == {"a": 2, "b": 1}
    for line in lines[:1] * 2:
        board.remove(line)
    assert board.hosts == {"a": 1, "b": 1}, "nobody leaves twice"
    for line in lines[1:]:
        board.remove(line)
    assert not board.hosts
