"""Moving from Apache's broker to ours and back without a stop, with stock Java clients.

The new broker becomes a slave of the old one, the old one is stopped while a producer sends, and
the new one becomes the master. Nothing that was acknowledged is lost; what waited is delivered.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.apache.backends import OURS
from tests.support.apache.jars import VERSIONS
from tests.support.apache.replicas import Replica
from tests.support.apache.requests import create_topic, is_registered
from tests.support.apache.servers import (
    Server,
    Shell,
    apache_namesrv,
    java_shell,
    tianzhou_namesrv,
    wait_to_hold,
    wait_until,
)
from tests.support.brokers import peer_of
from tests.support.command_line import run_words
from tianzhou.protocol.codes import ResponseCode

pytestmark = [pytest.mark.apache, pytest.mark.full]

OLDER = VERSIONS[0]
TOPIC, GROUP = "moved", "movers"
COMMON: dict[str, Any] = {
    # One file: a fresh slave copies only the last one by Apache's protocol.
    "mappedFileSizeCommitLog": 64 * 1024 * 1024,
    "maxMessageSize": 64 * 1024,
    "messageDelayLevel": "1s 60s",
    "slaveReadEnable": "true",
}
OLD: dict[str, Any] = {"brokerRole": "ASYNC_MASTER", "brokerId": 0}
NEW: dict[str, Any] = {"brokerRole": "SLAVE", "brokerId": 1}
NOT_CHECKED: dict[str, Any] = {"transactionCheckInterval": 600_000}
CHECKED: dict[str, Any] = {
    "transactionCheckInterval": 1_000, "transactionTimeOut": 1_000, "transactionCheckMax": 1_000,
}  # fmt: skip
WAIT_S = 60
PATIENCE_S = 180
SENT_MIN = 100


@dataclass
class Clients:
    """Stock clients: a producer that sends all the time, a consumer, and open transactions."""

    shell: Shell
    namesrv: str
    acknowledged: list[str] = field(default_factory=list[str])
    failures: list[str] = field(default_factory=list[str])
    expected: set[str] = field(default_factory=set[str])
    """What the consumer must receive besides."""
    _stopping: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        ask = partial(self.shell.ask, namesrv=self.namesrv, topic=TOPIC)
        ask("start_producer", name="p")
        ask("start_consumer", name="c", way="plain", group=GROUP)
        ask("start_transactions", name="t", group="deciders")

    def begin_transaction(self, body: str) -> None:
        """It is committed when the new master checks it."""
        sent = self.shell.ask(
            "send_transaction", name="t", topic=TOPIC, body=body, local="UNKNOW",
            check="COMMIT_MESSAGE",
        )  # fmt: skip
        assert sent["status"] == "SEND_OK", sent
        self.expected.add(body)

    @contextmanager
    def producing(self) -> Generator[None]:
        """Send one message after the other, whatever happens."""
        sender = threading.Thread(target=self._produce, daemon=True)
        sender.start()
        try:
            yield
        finally:
            self._stopping.set()
            sender.join(PATIENCE_S)

    def _produce(self) -> None:
        number = 0
        while not self._stopping.is_set():
            body = f"m{number}"
            number += 1
            try:
                (sent,) = self.shell.ask("send", name="p", topic=TOPIC, bodies=[body])
            except AssertionError as error:
                self.failures.append(str(error)[:300])
                time.sleep(0.2)
                continue
            if sent["status"] == "SEND_OK":
                self.acknowledged.append(body)
            else:
                self.failures.append(sent["status"])

    def await_more(self) -> None:
        """Wait until so many more sends are acknowledged."""
        goal = len(self.acknowledged) + SENT_MIN
        wait_until(
            lambda: len(self.acknowledged) >= goal, f"{goal} sends", timeout_s=PATIENCE_S,
            seen=lambda: (len(self.acknowledged), self.failures[-1:]),
        )  # fmt: skip

    def received(self) -> set[str]:
        return {each["body"] for each in self.shell.consumed("c")}

    def await_everything(self) -> None:
        """Wait until the consumer has received all that was acknowledged, and all that waited."""

        def check() -> None:
            missing = (self.expected | set(self.acknowledged)) - self.received()
            assert not missing, (len(missing), sorted(missing)[:5])

        wait_to_hold(check, timeout_s=PATIENCE_S)

    def report(self, title: str) -> None:
        """Figures of the move, for those who run the test with -s."""
        sys.stdout.write(
            f"{title}: {len(self.acknowledged)} acknowledged, {len(self.failures)} failed sends, "
            f"{len(self.shell.consumed('c'))} deliveries of {len(self.received())} messages\n"
        )


async def send_waiting(clients: Clients, broker: Replica, version: str) -> None:
    """Messages that are due after the move; RocketMQ 4.9 has no timer."""
    kinds = {"delayed": {"DELAY": "2"}}
    if version != OLDER:
        kinds["timed"] = {"TIMER_DELAY_SEC": str(WAIT_S)}
    async with peer_of(broker.address) as peer:
        for body, props in kinds.items():
            sent = await peer.send(TOPIC, body.encode(), props=props)
            assert sent.code == ResponseCode.SUCCESS, sent
            clients.expected.add(body)


def await_copy(old: Replica, new: Replica) -> None:
    """Wait until the new broker follows, and has the tables of the old one."""
    end = old.end()

    def check() -> None:
        assert new.end() >= end
        assert new.topics() == old.topics()
        assert GROUP in new.groups()
        assert f"{TOPIC}@{GROUP}" in new.offsets()

    wait_to_hold(check, timeout_s=PATIENCE_S)


@contextmanager
def stage(
    folder: Path, namesrv: AbstractContextManager[Server], version: str, old: str, new: str
) -> Generator[tuple[Clients, Replica, Replica]]:
    """Clients with the old broker; the new one is not started."""
    with ExitStack() as stack:
        names = stack.enter_context(namesrv)
        first = Replica(old, names, folder / "old", COMMON | OLD | NOT_CHECKED)
        second = Replica(new, names, folder / "new", COMMON | NEW | CHECKED)
        for each in (first, second):
            each.graceful = True
            stack.callback(each.remove)
            stack.callback(each.life.stop)
        first.life.start()
        create_topic(first.address, TOPIC)
        clients = Clients(stack.enter_context(java_shell(version, "KindsShell")), names.address)
        clients.start()
        yield clients, first, second


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest, apache: None) -> str:
    chosen: str = request.param
    return chosen


def test_from_apaches_broker_to_ours(version: str, tmp_path: Path) -> None:
    names = apache_namesrv(version) if version == OLDER else tianzhou_namesrv()
    with stage(tmp_path, names, version, version, OURS) as (clients, old, new):
        clients.begin_transaction("open")
        with clients.producing():
            clients.await_more()
            new.life.start()
            await_copy(old, new)
            asyncio.run(send_waiting(clients, old, version))
            clients.await_more()
            old.life.stop()
            wait_until(
                lambda: not is_registered(clients.namesrv, old.address),
                "the end of the old master's registration",
                timeout_s=PATIENCE_S,
            )
            ran = run_words(["broker", "promote", "broker-a", "--yes", "-n", clients.namesrv])
            assert ran.code == 0, ran
            clients.await_more()
        clients.await_everything()
        clients.report(f"{version} to ours")
        new.life.stop()
        new.verify()
        assert not new.errors(), new.errors()


def test_from_our_broker_to_apaches(version: str, tmp_path: Path) -> None:
    with stage(tmp_path, tianzhou_namesrv(), version, OURS, version) as (clients, old, new):
        clients.begin_transaction("open")
        with clients.producing():
            clients.await_more()
            new.life.start()
            await_copy(old, new)
            asyncio.run(send_waiting(clients, old, version))
            clients.await_more()
            old.life.stop()
            new.life.stop()
            new.settings |= OLD
            new.life.start()
            clients.await_more()
        clients.await_everything()
        clients.report(f"ours to {version}")
        old.verify()
        assert not old.errors(), old.errors()
