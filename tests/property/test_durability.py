"""Waits for disk and slaves against a plain model: each ends once, in order, with the right code.

Random interleavings of waits, flushes, acknowledgements, time-outs, lost slaves, changed roles and
a failing disk. The clock of the event loop moves only when a test moves it. At the end the same for
the sessions of a master under automatic failover.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.counted import Counted
from tests.support.framing import split
from tests.support.replicas import StandInReplicas

from tianzhou.broker.config import BrokerConfig, load_broker_config
from tianzhou.broker.storing.durability import Durability
from tianzhou.broker.storing.in_sync import InSync
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given, Loaded
from tianzhou.errors import RequestError, StoreBroken, StoreError
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command, decode, encode
from tianzhou.remoting.connection import Connection
from tianzhou.store.flush import FlushCallback
from tianzhou.store.message_store import MessageStore

Action = tuple[str, dict[str, Any]]
"""A method of `Model` and its arguments."""

FLUSH_S, SLAVE_S = 5.0, 3.0
OK, DISK, LACKS, SLAVE = (
    ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
)  # fmt: skip
BROKEN = ResponseCode.SERVICE_NOT_AVAILABLE
SECURED = -1
"""What a wait for copies of the broker ends with."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock a test moves."""

    now_s = 1000.0

    def time(self) -> float:
        return self.now_s


@dataclass
class Log:
    """The part of a store that waits need."""

    end_log_offset: int = 0
    flushed_log_offset: int = 0
    shows_confirmed: bool = False
    failure: StoreError | None = None
    requested: list[tuple[int, FlushCallback]] = field(
        default_factory=list[tuple[int, FlushCallback]]
    )
    """By sends."""
    requested_by_copies: list[tuple[int, FlushCallback]] = field(
        default_factory=list[tuple[int, FlushCallback]]
    )
    request_count: int = 0

    def when_flushed(self, log_offset: int, callback: FlushCallback) -> None:
        self.request_count += 1
        self._add(self.requested, log_offset, callback)

    def _add(
        self, requests: list[tuple[int, FlushCallback]], log_offset: int, callback: FlushCallback
    ) -> None:
        if self.failure is not None or log_offset <= self.flushed_log_offset:
            callback(self.failure)
        else:
            requests.append((log_offset, callback))

    def flushed(self, log_offset: int) -> "Future[None]":
        future: Future[None] = Future()

        def on_flushed(failure: StoreError | None) -> None:
            if not future.set_running_or_notify_cancel():
                return
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)

        self._add(self.requested_by_copies, log_offset, on_flushed)
        return future

    def flush(self, log_offset: int, failure: StoreError | None = None) -> None:
        self.failure = failure
        if failure is None:
            self.flushed_log_offset = max(self.flushed_log_offset, log_offset)
        due: list[tuple[int, FlushCallback]] = []
        for requests in (self.requested, self.requested_by_copies):
            due += [each for each in requests if failure or each[0] <= self.flushed_log_offset]
            requests[:] = [each for each in requests if each not in due]
        for _, callback in due:
            callback(failure)


@dataclass
class Receiver:
    """A connection that records the codes of the responses sent to it."""

    on_code: Callable[[int], None]
    held_count: int = 0
    """Requests that count as running."""

    def hold(self, count: int) -> None:
        self.held_count += count

    def release(self, count: int, frames: bytes) -> None:
        self.held_count -= count
        codes = {decode(frames[start:stop]).code for start, stop in split(frames)[0]}
        assert len(codes) == 1
        self.on_code(codes.pop())


def frames_of(count: int) -> bytes:
    return b"".join(
        encode(Command(code=OK, opaque=number, flag=1, ext_fields={"msgId": "A"}))
        for number in range(count)
    )


# -- the model -------------------------------------------------------------------------------------


@dataclass(eq=False)
class Wait:
    """What the model knows of one wait."""

    log_offset: int
    send_count: int
    flush_deadline_s: float | None
    """None if it does not wait for the disk."""
    slave_deadline_s: float | None
    """None if it does not wait for slaves."""
    lacks_slave: bool = False
    is_copy: bool = False
    is_block: bool = False
    is_queued: bool = True
    codes: list[int] = field(default_factory=list[int])
    """How it ended; one at last."""
    expected: list[int] = field(default_factory=list[int])

    def code(self, flushed: int, replicated: int) -> int:
        if self.slave_deadline_s is not None and replicated < self.log_offset:
            return SLAVE
        if self.lacks_slave:
            return LACKS
        if self.flush_deadline_s is not None and flushed < self.log_offset:
            return DISK
        return OK


class Model:
    """A `Durability`, and what must have happened to each of its waits."""

    def __init__(self, loop: VirtualLoop, *, sync_flush: bool) -> None:
        self.loop, self.sync_flush, self.is_sync_master = loop, sync_flush, True
        self.settings = LiveSettings(self.loaded("SYNC_MASTER"))
        self.log, self.slaves = Log(), StandInReplicas()
        store = cast("MessageStore", self.log)
        self.durability = Durability(store, self.settings, self.slaves)
        self.slaves.on_advance = self.durability.replicas_advanced
        self.waits: list[Wait] = []
        self.ended: list[Wait] = []
        self.receivers: list[Receiver] = []
        self.tasks: list[asyncio.Task[None]] = []

    def loaded(self, role: str) -> Loaded[BrokerConfig]:
        pairs = {
            "flushDiskType": "SYNC_FLUSH" if self.sync_flush else "ASYNC_FLUSH",
            "syncFlushTimeout": int(FLUSH_S * 1000), "slaveTimeout": int(SLAVE_S * 1000),
            "brokerRole": role,
        }  # fmt: skip
        flags = [Given(key, str(value), "test") for key, value in pairs.items()]
        return load_broker_config(environ={}, flags=flags)

    # -- what happens

    def new_wait(self, log_offset: int, send_count: int, *, is_copy: bool = False) -> Wait:
        waits_for_disk = self.sync_flush and not is_copy
        has_slaves = self.is_sync_master and self.slaves.in_reach
        now_s = self.loop.now_s
        wait = Wait(
            log_offset, send_count,
            now_s + FLUSH_S if waits_for_disk else None, now_s + SLAVE_S if has_slaves else None,
            lacks_slave=self.is_sync_master and not has_slaves, is_copy=is_copy,
        )  # fmt: skip
        self.waits.append(wait)
        return wait

    def end(self, wait: Wait, code: int) -> None:
        """The law that matters most does not depend on the model."""
        assert not wait.codes, "ended twice"
        if code == OK and self.sync_flush:
            assert self.log.flushed_log_offset >= wait.log_offset
        if code == OK and (wait.slave_deadline_s is not None or wait.lacks_slave):
            assert self.slaves.replicated_log_offset >= wait.log_offset
        if code == SECURED:
            assert self.log.flushed_log_offset >= wait.log_offset
        wait.codes.append(code)
        self.ended.append(wait)

    def send(self, size: int, back: int, send_count: int) -> None:
        """Store messages and wait, `back` bytes late if a new topic was saved meanwhile.

        A `send_count` of 0 is a send by the handlers, others are by the fast path.
        """
        self.log.end_log_offset += size
        log_offset = max(self.log.end_log_offset - back, 1)
        wait = self.new_wait(log_offset, send_count or 1)
        durability = self.durability
        assert durability.may_wait == (self.sync_flush or self.is_sync_master)
        assert not durability.must_wait(wait_stored=False)
        assert durability.code_at_once(wait_stored=False) == OK
        if send_count:
            wait.is_block = True
            receiver = Receiver(partial(self.end, wait))
            self.receivers.append(receiver)
            connection = cast("Connection", receiver)
            durability.hold([(connection, frames_of(send_count), send_count)], log_offset)
        elif durability.must_wait(wait_stored=True):
            self.tasks.append(self.loop.create_task(self.handle(wait)))
        else:
            assert wait.flush_deadline_s is None
            assert wait.slave_deadline_s is None
            self.end(wait, durability.code_at_once(wait_stored=True))

    async def handle(self, wait: Wait) -> None:
        try:
            self.end(wait, await self.durability.stored(wait.log_offset))
        except RequestError as e:
            self.end(wait, e.code)

    def copy(self, size: int) -> None:
        """The broker stores a copy, and waits before it saves its progress."""
        self.log.end_log_offset += size
        wait = self.new_wait(self.log.end_log_offset, 0, is_copy=True)
        self.tasks.append(self.loop.create_task(self.secure(wait)))

    async def secure(self, wait: Wait) -> None:
        try:
            await self.durability.secured(wait.log_offset)
        except StoreError:
            self.end(wait, BROKEN)
        else:
            self.end(wait, SECURED)

    def flush(self, *, all_of_it: bool) -> None:
        """A flush ends that covers the log, or no more than the first send that requested one."""
        first = min((each for each, _ in self.log.requested), default=self.log.end_log_offset)
        self.log.flush(self.log.end_log_offset if all_of_it else first)

    def break_disk(self) -> None:
        for wait in self.waits:
            if not wait.expected and wait.log_offset > self.log.flushed_log_offset:
                self.expect_broken(wait)
        self.log.flush(0, StoreBroken("the disk failed"))

    def expect_broken(self, wait: Wait) -> None:
        if wait.flush_deadline_s is not None or wait.is_copy:
            wait.expected.append(BROKEN)
            wait.is_queued = wait.is_copy and wait.is_queued

    def acknowledge(self, part: float) -> None:
        """Slaves acknowledge a part of what they lack."""
        at, end = self.slaves.replicated_log_offset, self.log.end_log_offset
        self.slaves.acknowledge(at + int((end - at) * part))

    def forget_slave(self) -> None:
        """A slave connects again, and its acknowledgements are forgotten."""
        self.slaves.replicated_log_offset //= 2

    def reach(self, *, in_reach: bool) -> None:
        self.slaves.in_reach = in_reach

    def change_role(self, role: str) -> None:
        self.settings.config = self.loaded(role).config
        self.is_sync_master = role == "SYNC_MASTER"
        for wait in self.waits:
            if wait.slave_deadline_s is not None:
                wait.slave_deadline_s = min(wait.slave_deadline_s, self.loop.now_s)
        self.durability.role_changed()

    def pass_time(self, seconds: float) -> None:
        self.loop.now_s += seconds

    # -- what must have happened

    def is_over(self, wait: Wait) -> bool:
        now_s = self.loop.now_s
        is_flushed = (
            wait.flush_deadline_s is None
            or self.log.flushed_log_offset >= wait.log_offset
            or wait.flush_deadline_s <= now_s
        )
        is_replicated = (
            wait.slave_deadline_s is None
            or self.slaves.replicated_log_offset >= wait.log_offset
            or wait.slave_deadline_s <= now_s
        )
        return is_flushed and is_replicated

    def judge(self) -> None:
        """Decide which waits are over now: from the front of those for slaves, and of the rest."""
        flushed, replicated = self.log.flushed_log_offset, self.slaves.replicated_log_offset
        for for_slaves in (True, False):
            for wait in self.waits:
                if not wait.is_queued or (wait.slave_deadline_s is not None) != for_slaves:
                    continue
                if not self.is_over(wait):
                    break
                wait.is_queued = False
                if not wait.is_copy and not wait.expected:
                    wait.expected.append(wait.code(flushed, replicated))
        for wait in self.waits:
            is_released = wait.is_copy and not wait.is_queued and not wait.expected
            if is_released and flushed >= wait.log_offset:
                wait.expected.append(SECURED)

    async def check(self) -> None:
        if self.log.failure is not None:
            for wait in self.waits:
                is_late = wait.log_offset > self.log.flushed_log_offset
                if not wait.expected and is_late:
                    self.expect_broken(wait)
        for _ in range(8):
            await asyncio.sleep(0)
        self.judge()
        for number, wait in enumerate(self.waits):
            assert wait.codes == wait.expected, (number, wait)
        unended = [wait for wait in self.waits if not wait.codes]
        assert self.durability.waiting_count == sum(wait.send_count for wait in unended)

    async def run(self, actions: list[Action]) -> None:
        for name, arguments in actions:
            getattr(self, name)(**arguments)
            await self.check()
        before = self.log.request_count
        for _ in range(3):
            await self.check()
        assert self.log.request_count == before, "requests flushes although nothing happens"
        self.pass_time(FLUSH_S + SLAVE_S)
        await self.check()
        if self.log.failure is None:
            self.flush(all_of_it=True)
            await self.check()
        assert all(len(wait.codes) == 1 for wait in self.waits)
        self.check_order()
        assert all(receiver.held_count == 0 for receiver in self.receivers)
        assert all(task.done() for task in self.tasks)

    def check_order(self) -> None:
        """Blocks of responses that waited for the same are sent in the order of their sends."""
        for for_slaves in (True, False):
            numbers = [
                self.waits.index(wait)
                for wait in self.ended
                if wait.is_block
                and wait.codes != [BROKEN]
                and (wait.slave_deadline_s is not None) == for_slaves
                and (for_slaves or wait.flush_deadline_s is not None)
            ]
            assert numbers == sorted(numbers)


# -- the test --------------------------------------------------------------------------------------

SIZES = st.integers(1, 5)


def action(name: str, **arguments: st.SearchStrategy[object]) -> st.SearchStrategy[Action]:
    return st.tuples(st.just(name), st.fixed_dictionaries(arguments))


SEND = action("send", size=SIZES, back=st.sampled_from([0, 0, 0, 4]), send_count=st.integers(0, 3))
FLUSH = action("flush", all_of_it=st.booleans())
ACKNOWLEDGE = action("acknowledge", part=st.sampled_from([0.3, 0.7, 1.0, 1.0]))
PASS_TIME = action("pass_time", seconds=st.sampled_from([0.5, 1.0, 2.0, 3.0, 5.0]))
REACH = action("reach", in_reach=st.sampled_from([True, True, False]))
ROLE = action("change_role", role=st.sampled_from(["SYNC_MASTER", "SYNC_MASTER", "ASYNC_MASTER"]))
COPY = action("copy", size=SIZES)
KINDS = [
    *[SEND] * 6, *[FLUSH] * 3, *[ACKNOWLEDGE] * 3, *[PASS_TIME] * 3, *[REACH] * 2, *[COPY] * 2,
    ROLE, action("forget_slave"),
]  # fmt: skip
# Not by one_of, which counts equal strategies once.
ACTIONS = st.lists(st.sampled_from(KINDS).flatmap(lambda kind: kind), min_size=12, max_size=60)
"""A disk that fails does so once, so that is not among them."""


def run(actions: list[Action], *, sync_flush: bool) -> Model:
    loop = VirtualLoop()
    try:
        model = Model(loop, sync_flush=sync_flush)
        try:
            loop.run_until_complete(model.run(actions))
        finally:
            for task in model.tasks:
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()
    return model


@given(actions=ACTIONS, sync_flush=st.booleans())
@settings(max_examples=400)
def test_waits_end_once_in_order_and_with_the_right_code(
    actions: list[Action], sync_flush: bool
) -> None:
    run(actions, sync_flush=sync_flush)


def test_a_shorter_timeout_that_begins_later_ends_first() -> None:
    """The time-out of slaves ends while that of an earlier flush has not."""
    send: Action = ("send", {"size": 1, "back": 0, "send_count": 1})
    actions: list[Action] = [
        ("reach", {"in_reach": False}), send,
        ("reach", {"in_reach": True}), send,
        ("flush", {"all_of_it": True}), ("pass_time", {"seconds": SLAVE_S}),
    ]  # fmt: skip
    assert [wait.codes for wait in run(actions, sync_flush=True).waits] == [[LACKS], [SLAVE]]


def test_sends_beyond_the_requested_flushes_get_one_of_their_own() -> None:
    """At most two flushes are requested at a time, so the third send has none at first."""
    send: Action = ("send", {"size": 1, "back": 0, "send_count": 1})
    flush: Action = ("flush", {"all_of_it": False})
    actions: list[Action] = [("change_role", {"role": "ASYNC_MASTER"}), send, send, send]
    waits = run([*actions, flush, flush, flush], sync_flush=True).waits
    assert [wait.codes for wait in waits] == [[OK]] * 3


@given(before=ACTIONS, after=ACTIONS, sync_flush=st.booleans())
@settings(max_examples=60)
def test_waits_end_when_the_disk_fails(
    before: list[Action], after: list[Action], sync_flush: bool
) -> None:
    later = [each for each in after if each[0] != "flush"]
    run([*before, ("break_disk", {}), *later], sync_flush=sync_flush)


# -- automatic failover ----------------------------------------------------------------------------


@dataclass
class ConfirmedLog(Log):
    """The part of a store that waits need if readers see only what is confirmed."""

    shows_confirmed: bool = True
    readable_log_offset: int = 0


@dataclass(eq=False)
class Stored:
    """A send or a copy of one session."""

    session: Counted
    log_offset: int
    is_copy: bool
    codes: list[int] = field(default_factory=list[int])


class Sessions:
    """A master that is elected again and again; what its waits end with is checked at once."""

    def __init__(self, loop: VirtualLoop, *, sync_flush: bool) -> None:
        self.loop, self.sync_flush = loop, sync_flush
        flush = "SYNC_FLUSH" if sync_flush else "ASYNC_FLUSH"
        pairs = {"brokerRole": "SYNC_MASTER", "flushDiskType": flush}
        flags = [Given(key, value, "test") for key, value in pairs.items()]
        self.log = ConfirmedLog()
        store = cast("MessageStore", self.log)
        self.durability = Durability(
            store, LiveSettings(load_broker_config(environ={}, flags=flags))
        )
        self.all: list[Stored] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.counted: Counted | None = None
        self.begin_session(in_force=2)

    # -- what happens

    def begin_session(self, in_force: int) -> None:
        if self.counted is None:
            self.counted = Counted(confirm=self.log.readable_log_offset, in_force=in_force)
            self.in_sync = InSync(self.counted, lambda: 1)
            self.durability.begin_session(self.in_sync)

    def end_session(self, *, cut: bool) -> None:
        """The log may lose what is not confirmed; then other records get those log offsets."""
        if self.counted is None:
            return
        session, self.counted = self.counted, None
        self.durability.end_session()
        if cut:
            self.log.end_log_offset = self.log.readable_log_offset
            self.log.flushed_log_offset = min(self.log.flushed_log_offset, self.log.end_log_offset)
        for each in self.all:
            assert each.is_copy or each.session is not session or each.codes, "still waits"

    def send(self, size: int) -> None:
        if self.counted is None:
            return
        self.log.end_log_offset += size
        stored = Stored(self.counted, self.log.end_log_offset, is_copy=False)
        self.all.append(stored)
        receiver = cast("Connection", Receiver(partial(self.end, stored)))
        self.durability.hold([(receiver, frames_of(1), 1)], stored.log_offset)

    def copy(self, size: int) -> None:
        if self.counted is None:
            return
        self.log.end_log_offset += size
        stored = Stored(self.counted, self.log.end_log_offset, is_copy=True)
        self.all.append(stored)
        self.tasks.append(self.loop.create_task(self.secure(stored)))

    async def secure(self, stored: Stored) -> None:
        try:
            await self.durability.secured(stored.log_offset)
        except StoreError:
            stored.codes.append(BROKEN)
            return
        assert self.log.readable_log_offset >= stored.log_offset, "claims what can be removed"
        stored.codes.append(SECURED)

    def confirm(self, part: float) -> None:
        counted, log = self.counted, self.log
        if counted is None:
            return
        end = log.flushed_log_offset if self.sync_flush else log.end_log_offset
        counted.confirm += int(max(end - counted.confirm, 0) * part)
        log.readable_log_offset = max(log.readable_log_offset, counted.confirm)
        self.durability.confirmed()
        self.durability.replicas_advanced()

    def shrink_or_grow(self, in_force: int) -> None:
        if self.counted is not None:
            was_enough, self.counted.in_force = self.in_sync.is_enough, in_force
            if was_enough and not self.in_sync.is_enough:
                self.durability.replicas_lost()
            self.durability.replicas_advanced()

    def flush(self) -> None:
        self.log.flush(self.log.end_log_offset)

    def pass_time(self, seconds: float) -> None:
        self.loop.now_s += seconds

    # -- what must be

    def end(self, stored: Stored, code: int) -> None:
        assert not stored.codes, "ended twice"
        stored.codes.append(code)
        if code == OK:
            assert stored.session is self.counted, "acknowledged by another session"
            assert stored.log_offset <= stored.session.confirm, "acknowledged, not confirmed"
            if self.sync_flush:
                assert stored.log_offset <= self.log.flushed_log_offset

    async def run(self, actions: list[Action]) -> None:
        for name, arguments in actions:
            getattr(self, name)(**arguments)
            if name != "end_session":  # the next session may begin at once
                for _ in range(4):
                    await asyncio.sleep(0)
        self.flush()
        self.end_session(cut=False)
        for _ in range(8):
            await asyncio.sleep(0)
        await asyncio.gather(*self.tasks)
        assert all(len(each.codes) == 1 for each in self.all)
        assert self.durability.waiting_count == 0


SESSION_KINDS = [
    *[action("send", size=SIZES)] * 6, *[action("copy", size=SIZES)] * 2,
    *[action("confirm", part=st.sampled_from([0.4, 1.0, 1.0]))] * 4,
    *[action("flush")] * 2, action("pass_time", seconds=st.sampled_from([1.0, 4.0, 9.0])),
    action("shrink_or_grow", in_force=st.sampled_from([1, 2, 3])),
    action("end_session", cut=st.booleans()), action("begin_session", in_force=st.just(2)),
]  # fmt: skip
SESSIONS = st.lists(
    st.sampled_from(SESSION_KINDS).flatmap(lambda kind: kind), min_size=12, max_size=60
)


def run_sessions(actions: list[Action], *, sync_flush: bool) -> list[Stored]:
    loop = VirtualLoop()
    failures: list[object] = []
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    try:
        sessions = Sessions(loop, sync_flush=sync_flush)
        loop.run_until_complete(sessions.run(actions))
    finally:
        loop.close()
    assert not failures, failures
    return sessions.all


@given(actions=SESSIONS, sync_flush=st.booleans())
@settings(max_examples=150)
def test_a_session_acknowledges_what_is_confirmed_in_it(
    actions: list[Action], sync_flush: bool
) -> None:
    run_sessions(actions, sync_flush=sync_flush)


SEND_ONE: Action = ("send", {"size": 5})
AGAIN: list[Action] = [("end_session", {"cut": True}), ("begin_session", {"in_force": 2})]
CONFIRM: Action = ("confirm", {"part": 1.0})


def test_the_law_fails_if_a_wait_outlives_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another record at the same log offset is confirmed in the next session."""
    actions = [SEND_ONE, *AGAIN, SEND_ONE, CONFIRM]
    assert [each.codes for each in run_sessions(actions, sync_flush=False)] == [[SLAVE], [OK]]

    def nothing(_: Durability) -> None:
        """As if waits had no session."""

    monkeypatch.setattr(Durability, "end_session", nothing)
    with pytest.raises(AssertionError):
        run_sessions(actions, sync_flush=False)


def test_the_law_fails_if_a_set_of_one_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink: Action = ("shrink_or_grow", {"in_force": 1})
    actions = [SEND_ONE, shrink, SEND_ONE, CONFIRM]
    assert [each.codes for each in run_sessions(actions, sync_flush=False)] == [[LACKS], [LACKS]]
    monkeypatch.setattr(InSync, "is_enough", True)
    codes = [each.codes for each in run_sessions(actions, sync_flush=False)]
    assert codes == [[OK], [OK]], "this is what the rule prevents"
