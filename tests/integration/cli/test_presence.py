"""`doctor` and `cluster watch` report missing brokers."""

import asyncio
import json
import threading
from pathlib import Path

import pytest
from tests.support.brokers import eventually
from tests.support.command_line import Cli

from tianzhou.admin.doctor.presence import KnownBroker
from tianzhou.cli.shared.seen_brokers import FILES_MAX, SeenBrokers
from tianzhou.testing import Cluster


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIANZHOU_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")


async def test_doctor_reports_broker_missing_since_last_run() -> None:
    async with Cluster(brokers=2) as cluster:
        cli = Cli(cluster.namesrv_address)
        await cli.run("doctor", "--wait", "0")
        await asyncio.to_thread(cluster.stop_broker, "broker-1")
        for _ in range(2):
            ran = await cli.run("doctor", "--wait", "0", code=1)
            assert "broker-1" in ran.out
            assert "is no longer registered" in ran.out
        told = (await cli.run("doctor", "--wait", "0", "--json", code=1)).json
        assert [each["subject"].split()[0] for each in told if each["level"] == "error"] == [
            "broker-1"
        ]
        refused = await cli.run("doctor", "--forget", "broker-0", code=1)
        assert "missing: broker-1" in refused.err
        assert "forgotten" in (await cli.run("doctor", "--wait", "0", "--forget", "broker-1")).out
        await cli.run("doctor", "--wait", "0")


async def test_doctor_reports_no_fault_after_broker_returns() -> None:
    async with Cluster(brokers=2) as cluster:
        cli = Cli(cluster.namesrv_address)
        await cli.run("doctor", "--wait", "0")
        await asyncio.to_thread(cluster.stop_broker, "broker-1")
        await cli.run("doctor", "--wait", "0", code=1)
        await asyncio.to_thread(cluster.start_broker, "broker-1")
        await cli.run("doctor", "--wait", "0")


async def test_doctor_reports_that_no_broker_is_registered() -> None:
    async with Cluster(brokers=1) as cluster:
        cli = Cli(cluster.namesrv_address)
        await asyncio.to_thread(cluster.stop_broker, "broker-0")
        ran = await cli.run("doctor", "--wait", "0", code=1)
        assert "no broker is registered" in ran.out


async def test_expect_option_reports_missing_brokers() -> None:
    async with Cluster(brokers=2) as cluster:
        cli = Cli(cluster.namesrv_address)
        wanted = ("--expect", "broker-0", "--expect", "broker-1", "--expect", "2")
        await cli.run("doctor", "--wait", "0", *wanted)
        ran = await cli.run("doctor", "--wait", "0", "--expect", "broker-9", code=1)
        assert "broker-9: is expected but not registered" in ran.out
        ran = await cli.run("doctor", "--wait", "0", "--expect", "3", code=1)
        assert "3 expected, 2 registered" in ran.out
        ran = await cli.run("doctor", "--expect", "0", code=2)
        assert "--expect 0" in ran.err


async def test_watch_reports_broker_lost_during_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The look before it goes, the look after, and the look when it is back."""
    looks = {"count": 0}
    gate = threading.Semaphore(0)
    sleep = asyncio.sleep

    async def between_looks(seconds: float) -> None:
        if seconds != 77:
            await sleep(seconds)
            return
        looks["count"] += 1
        while not gate.acquire(blocking=False):
            await sleep(0.01)

    async with Cluster(brokers=2) as cluster:
        cli = Cli(cluster.namesrv_address)
        monkeypatch.setattr(asyncio, "sleep", between_looks)
        words = ("cluster", "watch", "--wait", "0", "--every", "77", "--rounds", "3", "--json",
                 "--expect", "broker-0")  # fmt: skip
        watching = asyncio.ensure_future(cli.run(*words))
        await eventually(lambda: looks["count"] == 1, "the first look")
        await asyncio.to_thread(cluster.stop_broker, "broker-1")
        gate.release()
        await eventually(lambda: looks["count"] == 2, "the second look")
        await asyncio.to_thread(cluster.start_broker, "broker-1")
        gate.release()
        lines = [json.loads(line) for line in (await watching).out.splitlines()]
    told = [(each["change"], each["check"]) for each in lines if "broker-1" in each["subject"]]
    # Its warnings came at the first look; that it is gone makes none of them better.
    assert told == [("came", "settings")] * 2 + [("came", "brokers"), ("gone", "brokers")]


def test_saved_brokers_are_limited_and_survive_damaged_files(tmp_path: Path) -> None:
    for number in range(FILES_MAX + 3):
        assert SeenBrokers(tmp_path, [f"ns{number}:9876"]).save({}) is None
    seen = SeenBrokers(tmp_path, ["ns:9876", "very-long-name." * 30 + ":9876"])
    known = {("c", "b", 0): _known()}
    assert seen.save(known) is None
    assert SeenBrokers(tmp_path, ["very-long-name." * 30 + ":9876", "ns:9876"]).load() == (
        known, None
    )  # fmt: skip
    files = list((tmp_path / "seen").iterdir())
    assert len(files) <= FILES_MAX
    for each in files:
        each.write_text("{")
    found, warning = seen.load()
    assert found == {}
    assert warning is not None


def test_unwritable_folder_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "seen").write_text("a file in the way")
    warning = SeenBrokers(tmp_path, ["ns:9876"]).save({("c", "b", 0): _known()})
    assert warning is not None
    assert "cannot be written" in warning


def _known() -> KnownBroker:
    return KnownBroker("c", "b", 0, "a:1", 1)
