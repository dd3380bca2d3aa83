"""`cluster latency`, `cluster watch`, `cluster export` and `group allocate`."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command_line import Cli

from tianzhou.testing import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2, topics={"orders": 2}) as it:
        yield it


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIANZHOU_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def cli(cluster: Cluster) -> Cli:
    return Cli(cluster.namesrv_address)


def test_allocate_shows_queues_of_members(cli: Cli) -> None:
    told = cli("group", "allocate", "orders", "b", "a", "c", "--json").json["result"]
    # Members are sorted, as every member sorts them: a comes first and gets the odd queue.
    assert told["a"] == [
        {"topic": "orders", "brokerName": "broker-0", "queueId": 0},
        {"topic": "orders", "brokerName": "broker-0", "queueId": 1},
    ]
    assert [len(told[name]) for name in ("a", "b", "c")] == [2, 1, 1]
    circle = cli("group", "allocate", "orders", "a", "b", "--strategy", "circle", "--json").json
    assert [each["queueId"] for each in circle["result"]["a"]] == [0, 0]
    hashed = cli("group", "allocate", "orders", "a", "b", "--strategy", "hash", "--json").json
    assert sum(map(len, hashed["result"].values())) == 4
    assert "broker-0/0, broker-0/1" in cli.mqadmin("allocateMQ", "-t", "orders", "-i", "x,y").out
    assert "not one of: average" in cli.refused(
        "group", "allocate", "orders", "a", "--strategy", "x", code=2
    )
    assert "each only once" in cli.refused("group", "allocate", "orders", "a", "a", code=2)
    assert "there is no topic" in cli.refused("group", "allocate", "nothing", "a")


def test_latency_is_measured_per_broker(cli: Cli) -> None:
    words = ("cluster", "latency", "--count", "5", "--size", "10", "--once", "--json")
    rows = cli(*words).json
    assert [(row["broker"], row["stored"], row["failed"]) for row in rows] == [
        ("broker-0", 5, 0), ("broker-1", 5, 0),
    ]  # fmt: skip
    assert all(0 < row["mean_ms"] <= row["max_ms"] for row in rows)
    assert cli("topic", "show", "broker-1", "--json").json["messages"] == 5
    assert "broker-1" in cli("cluster", "latency", "--count", "1", "--once").out


def test_watch_prints_new_faults(cli: Cli) -> None:
    words = ("cluster", "watch", "--every", "0.2", "--rounds", "2", "--wait", "0")
    lines = cli(*words, "--json").lines
    # Both rounds find the same; only the first one tells.
    came = [(each["change"], each["check"], each["subject"]) for each in lines]
    assert came.count(("came", "settings", "broker-0")) == 2
    assert len({(*key, each["what"]) for key, each in zip(came, lines, strict=True)}) == len(lines)
    assert "warning settings: broker-0: creates topics automatically" in cli(*words).out
    alone = Cli("127.0.0.1:1")
    (line,) = alone(*words, "--json").lines
    assert (line["level"], line["check"]) == ("error", "nameservers")


def test_metadata_export_has_the_layout_of_mqadmin(cli: Cli, tmp_path: Path) -> None:
    cli("group", "create", "billing", "--retry-queues", "2")
    out = cli("cluster", "export", "metadata", "--folder", str(tmp_path / "new")).out
    path = tmp_path / "new" / "metadata.json"
    assert f"export {path} success" in out
    told = json.loads(path.read_text())
    assert set(told) == {"topicConfigTable", "subscriptionGroupTable", "exportTime"}
    assert list(told["topicConfigTable"]) == ["orders"]
    # Both brokers have 2 queues of it.
    orders = told["topicConfigTable"]["orders"]
    assert (orders["readQueueNums"], orders["writeQueueNums"], orders["perm"]) == (4, 4, 6)
    assert told["subscriptionGroupTable"]["billing"]["retryQueueNums"] == 4
    cli("topic", "create", "%RETRY%billing", "--broker", "broker-0")
    where = ("-f", str(tmp_path))
    cli.mqadmin("exportMetadata", "-c", "DefaultCluster", "-t", "-s", *where)
    topics = json.loads((tmp_path / "topic.json").read_text())
    assert set(topics["topicConfigTable"]) == {"orders", "%RETRY%billing"}
    address = cli("broker", "list", "--json").json[0]["address"]
    cli.mqadmin("exportMetadata", "-b", address, "-g", *where)
    groups = json.loads((tmp_path / "subscriptionGroup.json").read_text())
    assert set(groups) == {"subscriptionGroupTable", "exportTime"}
    assert groups["subscriptionGroupTable"]["billing"]["retryQueueNums"] == 2
    only = cli("cluster", "export", "metadata", "--only", "topics", "--special", "--json").json
    assert "%RETRY%billing" in only["topicConfigTable"]


def test_settings_and_figures_are_exported(cli: Cli, tmp_path: Path) -> None:
    where = ("-c", "DefaultCluster", "-f", str(tmp_path))
    cli.mqadmin("exportConfigs", *where)
    told = json.loads((tmp_path / "configs.json").read_text())
    assert told["clusterScale"] == {
        "namesrvSize": 1, "masterBrokerSize": 2, "slaveBrokerSize": 0,
    }  # fmt: skip
    assert told["brokerConfigs"]["broker-1"]["brokerName"] == "broker-1"
    assert told["brokerConfigs"]["broker-1"]["flushDiskType"] == "ASYNC_FLUSH"
    cli.mqadmin("exportMetrics", *where)
    figures = json.loads((tmp_path / "metrics.json").read_text())
    quota = figures["evaluateReport"]["broker-0"]["runtimeQuota"]
    assert quota["topicSize"] >= 1
    assert set(quota["tps"]) == {"normalInTps", "normalOutTps", "transInTps", "scheduleInTps"}
    assert figures["totalData"]["totalTps"]["totalNormalInTps"] >= quota["tps"]["normalInTps"]
    assert "normalOneDayInNum" in figures["totalData"]["totalOneDayNum"]


def test_invalid_exports_are_errors(cli: Cli, tmp_path: Path) -> None:
    assert "--only (topics or groups)" in cli.refused(
        "cluster", "export", "configs", "--special", code=2
    )
    assert "--only (topics or groups)" in cli.refused(
        "cluster", "export", "metadata", "--only", "x", code=2
    )
    assert "no cluster" in cli.refused("cluster", "export", "metrics", "--cluster", "x")
    blocked = tmp_path / "file"
    blocked.write_text("")
    told = cli.refused("cluster", "export", "configs", "--folder", str(blocked))
    assert "cannot be written" in told
