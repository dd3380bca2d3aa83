"""Commands that send many messages to a cluster that rejects some of them."""

from pathlib import Path

import pytest
from tests.support.command_line import Cli

from tianzhou.testing import Cluster


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIANZHOU_CONFIG_DIR", str(tmp_path))


def test_failed_sends_give_exit_code_1(tmp_path: Path) -> None:
    quota = tmp_path / "quota.yml"
    quota.write_text("topics: [{topic: t, messagesPerSecond: 0.001}]")
    with Cluster(topics={"t": 1}, quotaFile=str(quota)) as cluster:
        cli = Cli(cluster.namesrv_address)
        ran = cli("bench", "send", "t", "--count", "3", "--concurrency", "1", "--json", code=1)
        assert (ran.json["messages"], ran.json["failures"]) == (1, 2)
        assert "messagesPerSecond" in ran.json["first_error"]


def test_interrupted_send_reports_acknowledged_count(tmp_path: Path) -> None:
    quota = tmp_path / "quota.yml"
    quota.write_text("topics: [{topic: t, messagesPerSecond: 0.001}]")
    with Cluster(topics={"t": 1}, quotaFile=str(quota)) as cluster:
        cli = Cli(cluster.namesrv_address)
        ran = cli("message", "send", "t", "x", "--count", "3", code=1)
        assert "1 of 3 messages were acknowledged" in ran.err
        assert "messagesPerSecond" in ran.err
        assert cli("topic", "show", "t", "--json").json["queues"][0]["end"] == 1
