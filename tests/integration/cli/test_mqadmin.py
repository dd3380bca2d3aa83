"""What the sub commands of mqadmin ask for beyond the usual: each option has its effect."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command_line import Cli

from tianzhou.client.consumer.push import PushConsumer
from tianzhou.client.message import ReceivedMessage
from tianzhou.client.producer.producer import Producer
from tianzhou.testing import Cluster

CLUSTER = "DefaultCluster"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2, topics={"orders": 2, "quiet": 1}, traceTopicEnable=True) as it:
        yield it


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIANZHOU_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def cli(cluster: Cluster) -> Cli:
    return Cli(cluster.namesrv_address)


# -- topics and groups -----------------------------------------------------------------------------


def test_topics_with_their_clusters_and_groups(cli: Cli) -> None:
    cli("offset", "reset", "listed", "orders", "--to", "latest", "--yes")
    (row,) = cli("topic", "list", "orders", "--groups", "--json").json
    assert row["clusters"] == [CLUSTER]
    assert "listed" in row["groups"]
    assert "listed" in cli.mqadmin("topicList", "-c").out


def test_only_active_topics(cli: Cli) -> None:
    cli("message", "send", "orders", "x")
    names = {row["topic"] for row in cli("topic", "stats", "--json").json}
    active = {row["topic"] for row in cli("topic", "stats", "--active", "--json").json}
    assert "quiet" in names
    assert "orders" in active
    assert "quiet" not in active


def test_lag_of_groups_on_a_broker(cli: Cli) -> None:
    cli("topic", "create", "heaped", "--queues", "1", "--broker", "broker-0")
    for body in "abc":
        cli("message", "send", "heaped", body)
    cli("offset", "reset", "heapers", "heaped", "--to", "earliest", "--yes")
    (row,) = cli("topic", "stats", "heaped", "--json").json
    assert [(each["group"], each["lag"]) for each in row["groups"]] == [("heapers", 3)]
    assert "lag" in cli.mqadmin("statsAll", "-t", "heaped").out
    cli("offset", "reset", "heapers", "heaped", "--to", "latest", "--yes")
    assert cli("topic", "stats", "heaped", "--json").json[0]["groups"][0]["lag"] == 0


def test_mqadmin_update_resets_options_not_given(cli: Cli) -> None:
    cli("topic", "create", "plain", "--queues", "3", "--perm", "r", "--unit", "--broker",
        "broker-0", "--attribute", "message.type=FIFO")  # fmt: skip
    cli.mqadmin("updateTopic", "-b", "broker-0", "-t", "plain", "-w", "5")
    told = settings_of(cli, "topics", "plain")
    assert [told[name] for name in ("readQueueNums", "writeQueueNums", "perm")] == [8, 5, 6]
    assert told["topicSysFlag"] == 0
    assert told["attributes"] == {"message.type": "FIFO"}
    cli("topic", "update", "plain", "--read-queues", "4")
    assert settings_of(cli, "topics", "plain")["writeQueueNums"] == 5
    cli("topic", "update", "plain", "--from-defaults", "--broker", "broker-0")
    assert settings_of(cli, "topics", "plain")["writeQueueNums"] == 8

    cli("group", "create", "plainest", "--retries", "3", "--broadcast", "-b", "broker-0")
    cli.mqadmin("updateSubGroup", "-b", "broker-0", "-g", "plainest", "-q", "2")
    group = settings_of(cli, "groups", "plainest")
    assert (group["retryMaxTimes"], group["retryQueueNums"]) == (16, 2)
    assert not group["consumeBroadcastEnable"]
    assert not group["consumeFromMinEnable"]
    cli("group", "update", "plainest", "--retries", "4")
    assert settings_of(cli, "groups", "plainest")["retryQueueNums"] == 2
    cli("group", "update", "plainest", "--from-defaults", "-b", "broker-0")
    assert settings_of(cli, "groups", "plainest")["retryQueueNums"] == 1


def test_flags_and_attributes_of_a_topic(cli: Cli) -> None:
    cli.mqadmin(
        "updateTopic", "-c", CLUSTER, "-t", "flagged", "-u", "true", "-s", "true", "-a",
        "+message.type=FIFO",
    )  # fmt: skip
    assert settings_of(cli, "topics", "flagged")["topicSysFlag"] == 3
    cli(
        "topic", "update", "flagged", "--no-unit", "--remove-attribute", "message.type",
        "--unit-sub",
    )  # fmt: skip
    after = settings_of(cli, "topics", "flagged")
    assert after["topicSysFlag"] == 2
    assert not after.get("attributes")
    cli("topic", "update", "flagged", "--unit", "--no-unit-sub")
    assert settings_of(cli, "topics", "flagged")["topicSysFlag"] == 1


@pytest.mark.parametrize(
    ("flags", "bits"),
    [(("--unit", "--no-unit-sub"), 1), (("--no-unit", "--unit-sub"), 2)],
    ids=["unit", "subscribed"],
)
def test_flags_of_a_new_topic(cli: Cli, flags: tuple[str, ...], bits: int) -> None:
    cli("topic", "create", f"flagged-{bits}", *flags)
    assert settings_of(cli, "topics", f"flagged-{bits}")["topicSysFlag"] == bits


@pytest.mark.parametrize("kind", ["topic", "group"])
def test_remove_attribute_is_refused_at_creation(cli: Cli, kind: str) -> None:
    why = cli.refused(kind, "create", "brand-new", "--remove-attribute", "a", code=2)
    assert f"a new {kind} has no attributes yet" in why


def settings_of(cli: Cli, what: str, name: str) -> dict[str, object]:
    """A topic or a group as the cluster's export has it."""
    told = cli("cluster", "export", "metadata", "--cluster", CLUSTER, "--json").json
    table = "topicConfigTable" if what == "topics" else "subscriptionGroupTable"
    found: dict[str, object] = told[table][name]
    return found


def test_retry_policy_and_attributes_of_groups_are_copied(cli: Cli) -> None:
    policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1000, "max": 5000}}
    cli(
        "group", "create", "patient", "--broker", "broker-0", "--retry-policy", json.dumps(policy),
        "--attribute", "priority.factor=100",
    )  # fmt: skip
    cli("group", "copy", "patient", "--from", "broker-0", "--to", "broker-1", "--yes")
    cli("group", "update", "patient", "--remove-attribute", "priority.factor")
    told = settings_of(cli, "groups", "patient")
    assert not told.get("attributes")
    kept = told["groupRetryPolicy"]
    assert isinstance(kept, dict)
    assert kept["type"] == "EXPONENTIAL"
    refused = cli.refused("group", "update", "patient", "--retry-policy", "{", code=2)
    assert "--retry-policy" in refused


def test_copy_creates_missing_topics_on_all_brokers(tmp_path: Path) -> None:
    with Cluster(brokers=4, folder=tmp_path / "four") as cluster:
        cli = Cli(cluster.namesrv_address)
        cli("topic", "create", "spread", "--broker", "broker-0", "--queues", "3")
        cli("topic", "create", "spread-too", "--broker", "broker-0")
        cli("group", "create", "spread-group", "--broker", "broker-0", "--retries", "3")
        two = ("--to", "broker-1", "--to", "broker-2")
        planned = cli("topic", "copy", "spread", "--from", "broker-0", *two, "--dry-run").out
        assert "1 topic on broker-1: spread; 1 topic on broker-2: spread" in planned
        cli("topic", "copy", "spread", "--from", "broker-0", *two, "--yes")
        (row,) = cli("topic", "list", "spread", "--json").json
        assert (row["brokers"], row["read_queues"]) == (["broker-0", "broker-1", "broker-2"], 9)
        told = cli("topic", "copy", "spread*", "--from", "broker-0", "--yes").out
        assert "1 topic created on broker-1, 1 already there" in told
        assert "2 topics created on broker-3, 0 already there" in told
        cli("group", "copy", "spread-*", "--from", "broker-0", "--yes")
        assert len(cli("group", "show", "spread-group", "--json").json["settings"]) == 4
        same = ("--from", "broker-0", "--to", "broker-1", "--to", "broker-0")
        assert "same broker" in cli.refused("topic", "copy", *same, code=2)


def test_lists_of_topics_and_groups_from_files(cli: Cli, tmp_path: Path) -> None:
    topics, groups = tmp_path / "topics.json", tmp_path / "groups.json"
    topics.write_text(
        json.dumps(
            [
                {"topicName": "from-file-1", "readQueueNums": 3, "writeQueueNums": 3},
                {"topicName": "from-file-2", "attributes": {"message.type": "FIFO"}},
            ]
        )
    )
    groups.write_text(json.dumps([{"groupName": "from-file", "retryMaxTimes": 7}]))
    dry = cli("topic", "apply", str(topics), "--dry-run").out
    assert "would create or change 2 topics" in dry
    assert "there is no topic" in cli.refused("topic", "show", "from-file-1")
    cli.mqadmin("updateTopicList", "-c", CLUSTER, "-f", str(topics))
    (one, two) = cli("topic", "show", "from-file-1", "--json").json["brokers"]
    assert (one["read_queues"], two["read_queues"]) == (3, 3)
    shown = cli("topic", "show", "from-file-2", "--json").json["brokers"][0]
    assert shown["attributes"] == {"message.type": "FIFO"}
    assert "would create or change 1 group" in cli("group", "apply", str(groups), "--dry-run").out
    cli("group", "apply", str(groups), "--broker", "broker-0", "--yes")
    assert list(cli("group", "show", "from-file", "--json").json["settings"]) == ["broker-0"]
    assert settings_of(cli, "groups", "from-file")["retryMaxTimes"] == 7
    cli("group", "apply", str(groups), "--cluster", CLUSTER, "--yes")
    assert len(cli("group", "show", "from-file", "--json").json["settings"]) == 2
    topics.write_text(json.dumps([{"topicName": "from-file-3"}]))
    cli("topic", "apply", str(topics), "--broker", "broker-1", "--yes")
    (only,) = cli("topic", "show", "from-file-3", "--json").json["brokers"]
    assert only["broker"] == "broker-1"


def test_invalid_settings_files_are_errors(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    for text, why in (("[]", "empty"), ("[{}]", "needs a topicName"), ("7", "some.json")):
        file.write_text(text)
        assert why in cli.refused("topic", "apply", str(file), "--yes", code=2)
    assert "No such file" in cli.refused("group", "apply", "/none.json", "--yes", code=2)
    file.write_text(json.dumps([{"topicName": "good"}, {"topicName": "b?d"}]))
    cli.refused("topic", "apply", str(file), "--yes")
    assert "there is no topic" in cli.refused("topic", "show", "good")


# -- through another route -------------------------------------------------------------------------


def test_through_option_uses_route_of_another_topic(cli: Cli) -> None:
    sent = cli("message", "send", "orders", "x", "--key", "routed", "--json").json[0]
    for through in (CLUSTER, "quiet"):
        shown = cli("topic", "show", "orders", "--through", through, "--json").json
        assert {each["broker"] for each in shown["queues"]} == {"broker-0", "broker-1"}
        found = cli("message", "query", "orders", "--key", "routed", "--through", through, "--json")
        assert found.json[0]["id"] == sent["message_id"]
        words = ["message", "show", sent["message_id"], "--topic", "orders", "--through", through]
        assert cli(*words, "--json").json["body"] == "x"
    assert "there is no topic" in cli.refused("topic", "show", "orders", "--through", "none")
    words = ["offset", "skip", "routed", "orders", "--through", "quiet", "--yes"]
    assert "moved in 4 queues" in cli(*words).out
    words = ["offset", "reset", "routed", "orders", "--to", "earliest", "--cpp", "--yes"]
    assert "moved in 4 queues" in cli(*words, "--through", CLUSTER).out
    shown = cli("group", "show", "routed", "--topic", "orders", "--through", CLUSTER, "--json").json
    assert len(shown["queues"]) == 4
    shown = cli("group", "show", "routed", "--broker", "broker-1", "--json").json
    assert {each["broker"] for each in shown["queues"]} == {"broker-1"}
    assert cli("group", "show", "routed", "--cluster", CLUSTER, "--json").json["lag"] > 0


# -- messages --------------------------------------------------------------------------------------


def test_bodies_in_another_character_set(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "body"
    file.write_bytes("天舟".encode("gbk"))
    sent = cli("message", "send", "quiet", "--file", str(file), "--key", "gbk", "--json").json[0]
    ids = (sent["offset_id"], sent["offset_id"])
    shown = cli("message", "show", *ids, "--charset", "gbk", "--json").json
    assert [each["body"] for each in shown] == ["天舟", "天舟"]
    assert "天舟" in cli("message", "query", "quiet", "--key", "gbk", "--charset", "gbk").out
    place = ["--broker", sent["broker_name"], "--queue", "0"]
    words = ["message", "at", "quiet", *place, "--offset", str(sent["queue_offset"])]
    at = cli(*words, "--charset", "gbk", "--through", "orders", "--json").json
    assert at["body"] == "天舟"
    assert "unknown character set" in cli.refused(*words, "--charset", "klingon", code=2)


def test_count_by_tag_without_bodies_from_offset(cli: Cli) -> None:
    cli("topic", "create", "tagged", "--queues", "1", "--broker", "broker-0")
    for tag in ("a", "b", "a", "a"):
        cli("message", "send", "tagged", f"body-{tag}", "--tag", tag)
    query = ["message", "query", "tagged", "--from", "earliest"]
    counted = cli(*query, "--count-tags", "--no-list", "--json").json
    assert counted == {"messages": [], "tags": {"a": 3, "b": 1}}
    assert "body-a" not in cli(*query, "--no-body").out
    assert "body-a" in cli(*query, "--body", "--list").out
    found = cli(*query, "--offset", "2", "--group", "reader", "--json").json
    assert [each["queue_offset"] for each in found] == [2, 3]
    words = ["message", "query", "orders", "--from", "earliest", "--offset", "1"]
    assert "--offset applies to one queue" in cli.refused(*words, code=2)
    assert (
        "Tag" not in cli.mqadmin("printMsgByQueue", "-t", "tagged", "-a", "broker-0", "-i", "0").out
    )
    by_tag = ["message", "query", "tagged", "--key", "a", "--key-type", "T", "--last-key", "k"]
    assert cli(*by_tag, "--json").json == [], "our index holds keys, not tags"
    words = ["message", "entries", "tagged", "--queue", "0", "--offset", "0", "--json"]
    assert len(cli(*words).json) == 4, "the first broker that has it"


def test_send_with_trace_writes_a_trace(cli: Cli) -> None:
    words = ["message", "send", "orders", "seen", "--key", "k", "--trace", "--queue", "1"]
    sent = cli(*words, "--broker", "broker-1", "--json").json[0]
    assert (sent["broker_name"], sent["queue_id"], sent["status"]) == ("broker-1", 1, "SEND_OK")
    trace = ["message", "trace", sent["message_id"]]
    (event,) = cli(*trace, "--from", "1h", "--to", "now", "--limit", "5", "--json").json
    assert (event["kind"], event["topic"], event["keys"]) == ("Pub", "orders", "k")
    assert "no trace of" in cli.refused(*trace, "--to", "1h")


def test_resend_keeps_body_properties_and_id(cli: Cli) -> None:
    sent = cli("message", "send", "orders", "twice", "--tag", "t", "--property", "a=b", "--json")
    first = sent.json[0]
    (second,) = cli("message", "resend", first["offset_id"], "--json").json
    assert second["message_id"] == first["message_id"]
    copy = cli("message", "show", second["offset_id"], "--json").json
    assert (copy["body"], copy["tags"], copy["properties"]["a"]) == ("twice", "t", "b")
    assert second["offset_id"] != first["offset_id"]
    for through in (CLUSTER, "quiet"):
        words = ["message", "resend", first["message_id"], "--topic", "orders"]
        (again,) = cli(*words, "--through", through, "--json").json
        assert again["message_id"] == first["message_id"]
    assert "there is no topic" in cli.refused(*words, "--through", "none")


async def test_pushed_message_is_consumed_by_member(cluster: Cluster) -> None:
    cli = Cli(cluster.namesrv_address)
    got: list[str] = []

    async def take(message: ReceivedMessage) -> None:
        got.append(message.text)

    namesrv = cluster.namesrv_address
    consumer = PushConsumer("pushed", namesrv=namesrv, instance_name="only-one")
    consumer.subscribe("quiet", take, tags="nothing-else")
    async with consumer, Producer("makers", namesrv=namesrv) as producer:
        sent = await producer.send("quiet", "for you", tags="else")
        told = (await cli.run("group", "members", "pushed", "--broker", "broker-0", "--json")).json
        words = ["message", "push", sent.msg_id, "--topic", "quiet", "--group", "pushed"]
        words += ["--client", told[0]["client_id"]]
        (row,) = (await cli.run(*words, "--json", code=0)).json
        assert row["result"] == "CR_SUCCESS"
        assert got == ["for you"]
        await cli.run(*words, "--through", "orders", code=0)
        assert got == ["for you"] * 2
        rows = (await cli.run("group", "producers", "makers", "--topic", "orders", "--json")).json
        assert {row["group"] for row in rows} == {"makers"}


# -- brokers and clusters --------------------------------------------------------------------------


def test_settings_of_masters_only(cli: Cli) -> None:
    told = cli("broker", "config", CLUSTER, "brokerName", "--masters", "--json").json
    assert list(told) == ["broker-0", "broker-1"]


def test_latencies_as_lines_for_a_log(cli: Cli) -> None:
    words = ["cluster", "latency", "--count", "2", "--once", "--lines", "--room", "fra1"]
    lines = cli(*words).out.splitlines()
    assert [line.split("|")[1:4] for line in lines] == [
        ["fra1", CLUSTER, "broker-0"], ["fra1", CLUSTER, "broker-1"],
    ]  # fmt: skip
