"""Commands about topics, groups, offsets, brokers and nameservers."""

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
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def cli(cluster: Cluster) -> Cli:
    return Cli(cluster.namesrv_address)


# -- topics ----------------------------------------------------------------------------------------


def test_system_topics_are_hidden(cli: Cli) -> None:
    rows = cli("topic", "list", "orders", "--json").json
    assert rows == [
        {
            "topic": "orders", "kind": "normal", "brokers": ["broker-0", "broker-1"],
            "read_queues": 4, "write_queues": 4, "perm": "RW",
        }
    ]  # fmt: skip
    assert "TBW102" not in cli("topic", "list").out
    assert "TBW102" in cli("topic", "list", "--all").out
    assert "TBW102" not in cli("topic", "list", "--cluster", "DefaultCluster").out


def test_topic_is_created_updated_and_deleted(cli: Cli) -> None:
    assert "created on broker-0, broker-1" in cli("topic", "create", "life", "--queues", "3").out
    assert "exists on broker-0" in cli.refused("topic", "create", "life")
    told = cli("topic", "show", "life", "--json").json
    assert [each["read_queues"] for each in told["brokers"]] == [3, 3]
    assert (len(told["queues"]), told["messages"], told["groups"]) == (6, 0, [])
    out = cli("topic", "update", "life", "--write-queues", "1", "--perm", "r", "-b", "broker-1").out
    assert "write queues 3 -> 1, permission RW -> R-" in out
    rows = cli("topic", "route", "life", "--json").json
    by_broker = {row["broker"]: (row["write_queues"], row["perm"]) for row in rows}
    assert by_broker == {"broker-0": (3, "RW"), "broker-1": (1, "R-")}
    assert "would delete topic life" in cli("topic", "delete", "life", "--dry-run").out
    assert "pass --yes" in cli.refused("topic", "delete", "life", code=2)
    assert "deleted on broker-0, broker-1" in cli("topic", "delete", "life", "--yes").out
    assert "there is no topic 'life'" in cli.refused("topic", "show", "life")


def test_commands_with_broker_and_cluster_options(cli: Cli) -> None:
    cli("topic", "create", "there", "--broker", "broker-1", "--ordered", "--perm", "rw")
    assert cli("topic", "list", "there", "--json").json[0]["brokers"] == ["broker-1"]
    value = cli("namesrv", "kv", "get", "ORDER_TOPIC_CONFIG", "there").out
    assert value.strip() == "broker-1:8"
    assert "there is no broker 'x'" in cli.refused("topic", "create", "t", "--broker", "x")
    assert "there is no cluster 'x'" in cli.refused("topic", "create", "t", "--cluster", "x")


def test_update_without_options_is_an_error(cli: Cli) -> None:
    assert "nothing to change" in cli.refused("topic", "update", "orders", code=2)
    assert "topic create none" in cli.refused("topic", "update", "none", "--queues", "1")
    assert "created" not in cli("topic", "update", "fresh", "--or-create", "--queues", "1").err


def test_topics_and_groups_are_copied_to_a_new_broker(cli: Cli) -> None:
    cli("topic", "create", "copied", "--broker", "broker-0", "--queues", "5")
    cli("group", "create", "copied_group", "--broker", "broker-0", "--retries", "3")
    way = ("--from", "broker-0", "--to", "broker-1")
    planned = cli("topic", "copy", "copied", *way, "--dry-run").out
    assert "would create 1 topic on broker-1: copied" in planned
    assert cli("topic", "list", "copied", "--json").json[0]["brokers"] == ["broker-0"]
    assert "1 topic created" in cli("topic", "copy", "copied", *way, "--yes").out
    assert cli("topic", "list", "copied", "--json").json[0]["read_queues"] == 10
    assert "has all of these" in cli("topic", "copy", "copied", *way, "--yes").out
    assert "1 group created" in cli("group", "copy", "copied_*", *way, "--yes").out
    assert "has all of these" in cli("group", "copy", "copied_*", *way, "--yes").out
    same = cli.refused("topic", "copy", "--from", "broker-0", "--to", "broker-0", code=2)
    assert "same broker" in same


def test_topic_stats_show_rates_in_and_out(cli: Cli) -> None:
    assert any(row["topic"] == "orders" for row in cli("topic", "stats", "--json").json)


# -- groups and offsets ----------------------------------------------------------------------------


def test_group_is_created_updated_and_deleted(cli: Cli) -> None:
    assert "created on" in cli("group", "create", "g1", "--retries", "3", "--no-broadcast").out
    assert "exists on broker-0" in cli.refused("group", "create", "g1")
    more = ("--broker-id", "0", "--broker-id-when-slow", "1", "--notify", "--from-min")
    cli("group", "update", "g1", "--no-consume", "--retry-queues", "2", "--not-orderly", *more)
    told = cli("group", "show", "g1", "--json").json
    assert told["settings"]["broker-0"] == {
        "consume": False, "broadcast": False, "from_min": True, "retries": 3, "retry_queues": 2,
        "broker_id": 0, "broker_id_when_slow": 1, "orderly": False, "notify": True,
        "attributes": {},
    }  # fmt: skip
    assert (told["members"], told["lag"]) == ([], 0)
    assert "no member is online" in cli("group", "show", "g1").out
    assert "g1" in cli("group", "list").out
    assert "TOOLS_CONSUMER" not in cli("group", "list").out
    assert "no member of g1 is online" in cli.refused("group", "members", "g1")
    assert "would delete group g1" in cli("group", "delete", "g1", "--dry-run").out
    assert "deleted on" in cli("group", "delete", "g1", "--yes").out
    assert "there is no consumer group 'g1'" in cli.refused("group", "show", "g1")
    assert "there is no group 'g1'" in cli.refused("group", "update", "g1", "--retries", "1")
    assert "nothing to change" in cli.refused("group", "update", "g1", code=2)


def test_offsets_are_moved_shown_cloned_and_skipped(cli: Cli) -> None:
    cli("topic", "create", "walked", "--broker", "broker-0", "--queues", "2")
    cli("group", "create", "walker")
    cli("group", "create", "follower")
    for queue in ("0", "1"):
        cli("message", "send", "walked", "x", "--count", "5", "--queue", queue)
    assert "has no committed offsets" in cli.refused("offset", "show", "walker")
    planned = cli("offset", "reset", "walker", "walked", "--to", "latest", "--dry-run", "--json")
    assert [row["after"] for row in json.loads(planned.out)] == [5, 5]
    assert "has no committed offsets" in cli.refused("offset", "show", "walker"), (
        "it was only planned"
    )
    cli("offset", "reset", "walker", "walked", "--to", "earliest", "--yes")
    assert [row["lag"] for row in cli("offset", "show", "walker", "--json").json] == [5, 5]
    one = ("--queue", "1", "--broker", "broker-0", "--yes")
    cli("offset", "reset", "walker", "walked", "--to-offset", "3", *one)
    assert [row["committed"] for row in cli("offset", "show", "walker", "--json").json] == [0, 3]
    outside = cli.refused("offset", "reset", "walker", "walked", "--to-offset", "9", *one)
    assert "holds 0 to 5, 9 is outside" in outside
    cli("offset", "clone", "walker", "follower", "walked", "--yes", "--online-too")
    assert [row["committed"] for row in cli("offset", "show", "follower", "--json").json] == [0, 3]
    back = ("--to", "latest", "--only-back", "--yes")
    cli("offset", "reset", "walker", "walked", *back)
    assert [row["committed"] for row in cli("offset", "show", "walker", "--json").json] == [0, 3]
    assert "moved in 2 queues" in cli("offset", "skip", "walker", "walked", "--yes").out
    assert [row["lag"] for row in cli("offset", "show", "walker", "--json").json] == [0, 0]
    cli("offset", "reset", "walker", "walked", "--to", "1h", "--yes")
    assert cli("group", "show", "walker", "--json").json["lag"] == 10
    rows = cli("broker", "lag", "broker-0", "--json").json
    assert [row["lag"] for row in rows if row["group"] == "walker"] == [5, 5]
    assert "walker" not in cli("broker", "lag", "broker-0", "--min-lag", "6").out
    assert cli("broker", "lag", "broker-0", "--orderly", "--json").json == []


def test_invalid_offset_resets_are_errors(cli: Cli) -> None:
    assert "there is no topic" in cli.refused("offset", "reset", "g", "none", "--to", "latest")
    words = ["offset", "reset", "g", "orders", "--to", "soon", "--yes"]
    assert "is not a time" in cli.refused(*words, code=2)
    words = ["offset", "reset", "g", "orders", "--to-offset", "1", "--yes"]
    assert "add --queue and --broker" in cli.refused(*words, code=2)
    words = ["offset", "reset", "g", "orders", "--to", "latest", "--queue", "7", "--yes"]
    assert "no queue 7" in cli.refused(*words)


# -- brokers, clusters, nameservers ----------------------------------------------------------------


def test_brokers_and_clusters(cli: Cli) -> None:
    assert [row["answers"] for row in cli("broker", "list", "--json").json] == [True, True]
    assert cli("cluster", "list", "--json").json[0]["cluster"] == "DefaultCluster"
    assert "broker-1" in cli("cluster", "list", "--timeout", "10").out
    rows = cli("cluster", "show", "--json").json
    assert {row["broker"] for row in rows} == {"broker-0", "broker-1"}
    assert "V4_9" in cli("cluster", "show").out
    told = cli("cluster", "top", "--once", "--json").json
    assert len(told["brokers"]) == 2
    assert "backlog" in cli("cluster", "top", "--once", "--groups", "3").out
    assert "oldest message" in cli("broker", "show", "broker-0").out
    assert cli("broker", "runtime", "broker-0", "put*", "--json").json["broker-0"]["putTps"]
    assert len(cli("broker", "runtime", "DefaultCluster", "putTps", "--json").json) == 2
    assert "no broker has a statistic" in cli("broker", "stats", "TOPIC_PUT_NUMS", "nothing").out
    assert cli("group", "producers").code == 0


def test_modes_of_groups(cli: Cli) -> None:
    cli("group", "create", "popper")
    assert "no mode is set for popper" in cli("group", "mode", "popper").out
    one = ("--broker", "broker-0")
    done = cli("group", "mode", "popper", "orders", "pop", "--share", "2", *one)
    assert "group popper: topic orders set to POP on broker-0" in done.out
    assert cli("group", "mode", "popper", "orders", "--json").json == [
        {"topic": "orders", "broker": "broker-0", "mode": "POP", "share": 2}
    ]
    cli("group", "mode", "popper", "orders", "PULL", "--cluster", "DefaultCluster")
    rows = cli("group", "mode", "popper", "--json").json
    assert [(row["broker"], row["mode"]) for row in rows] == [
        ("broker-0", "PULL"), ("broker-1", "PULL"),
    ]  # fmt: skip
    assert "not one of" in cli.refused("group", "mode", "popper", "orders", "SIP", code=2)
    refusal = cli.refused("group", "mode", "popper", "none", "POP")
    assert "topic none does not exist on broker" in refusal


def test_replication_of_brokers(cli: Cli) -> None:
    assert "broker-0 is a master without slaves" in cli("broker", "ha", "broker-0").out
    told = cli("broker", "ha", "DefaultCluster", "--json").json
    assert [each["master"] for each in told.values()] == [True, True]
    words = ("broker", "flush-offset", "broker-0", "0")
    assert "would set the flush offset" in cli(*words, "--dry-run").out
    assert "set to 0 on broker-0" in cli(*words, "--yes").out


def test_settings_of_a_broker(cli: Cli) -> None:
    words = ["broker", "config", "broker-0"]
    assert cli(*words, "pullBatchMaxMessageCount", "--json").json["broker-0"] == {
        "pullBatchMaxMessageCount": "160"
    }
    planned = cli(*words, "--set", "pullBatchMaxMessageCount=320", "--dry-run").out
    assert "pullBatchMaxMessageCount 160 -> 320" in planned
    assert cli(*words, "pullBatchMaxMessageCount", "--json").json["broker-0"] == {
        "pullBatchMaxMessageCount": "160"
    }
    done = cli(
        *words, "--set", "pullBatchMaxMessageCount=320", "--set", "shutdownWaitTimeSeconds=3", "-y"
    )
    assert "shutdownWaitTimeSeconds: takes effect after a restart" in done.out
    assert cli(*words, "pullBatchMaxMessageCount", "--json").json["broker-0"] == {
        "pullBatchMaxMessageCount": "320"
    }
    refused = cli(*words, "--set", "fileReservedTime=48", "--yes", code=1)
    assert "only an administrator changes it" in refused.err
    assert "has no setting nothing" in cli.refused(*words, "--set", "nothing=1", "--yes")
    assert "has no setting that matches" in cli.refused(*words, "nothing*")
    assert "KEY=VALUE" in cli.refused(*words, "--set", "x", code=2)


def test_cleaning_and_maintenance_commands(cli: Cli) -> None:
    for what in ("log", "queues", "topics"):
        assert "would delete" in cli("broker", "clean", what, "--dry-run").out
    assert "requested to" in cli("broker", "clean", "queues", "-b", "broker-0", "--yes").out


def test_nameservers(cli: Cli) -> None:
    assert cli("namesrv", "list", "--json").json[0]["answers"] is True
    assert "listenPort" in cli("namesrv", "config").out
    assert "would set" in cli("namesrv", "config", "--set", "a=b", "--dry-run").out
    cli("namesrv", "kv", "put", "ns", "key", "value")
    assert cli("namesrv", "kv", "list", "ns", "--json").json == {"key": "value"}
    assert cli("namesrv", "kv", "get", "ns", "key").out == "value\n"
    cli("namesrv", "kv", "delete", "ns", "key", "--yes")
    assert "there is no 'key'" in cli.refused("namesrv", "kv", "get", "ns", "key")
    assert "0 pairs" in cli("namesrv", "kv", "list", "ns").out


def test_write_permission_of_a_broker(cli: Cli) -> None:
    words = ["namesrv", "write-permission", "broker-1"]
    assert "would forbid sending" in cli(*words, "off", "--dry-run").out
    cli(*words, "off", "--yes")
    rows = cli("topic", "route", "orders", "--json").json
    assert {row["broker"]: row["perm"] for row in rows}["broker-1"] == "R-"
    cli(*words, "on", "--yes")
    rows = cli("topic", "route", "orders", "--json").json
    assert {row["broker"]: row["perm"] for row in rows}["broker-1"] == "RW"
    assert "on or off" in cli.refused(*words, "maybe", code=2)
    words = ["namesrv", "write-permission", "nobody", "off", "--yes"]
    assert "there is no broker" in cli.refused(*words)


def test_unreachable_nameserver_is_skipped(cli: Cli) -> None:
    both = Cli(f"127.0.0.1:1;{cli.namesrv}")
    assert both("topic", "list", "orders", "--json").json
    rows = both("namesrv", "list", "--json").json
    assert sorted(row["answers"] for row in rows) == [False, True]


def test_mqadmin_subcommands_give_the_same_results(cli: Cli) -> None:
    words = ["updateTopic", "-c", "DefaultCluster", "-t", "old", "-r", "2", "-w", "2"]
    assert "topic old: created on broker-0, broker-1" in cli.mqadmin(*words).out
    assert "topic old: changed on broker-0, broker-1" in cli.mqadmin(*words).out
    words = ["updateSubGroup", "-c", "DefaultCluster", "-g", "old_group"]
    assert "group old_group: created on broker-0, broker-1" in cli.mqadmin(*words).out
    assert "group old_group: changed on" in cli.mqadmin(*words).out
    assert "broker-1" in cli.mqadmin("topicRoute", "-t", "old").out
    assert "old" in cli.mqadmin("topicList").out
    cli.mqadmin("deleteTopic", "-t", "old", "-c", "DefaultCluster")
    assert "there is no topic" in cli.mqadmin("topicRoute", "-t", "old", code=1).err
    assert "V4_9" in cli.mqadmin("clusterList").out
    ran = cli("mqadmin", "brokerStatus", "-b", "broker-0")
    assert "bootTimestamp" in ran.out
