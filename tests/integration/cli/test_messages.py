"""Commands about messages and dead letters."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command_line import Cli

from tianzhou.client import Message
from tianzhou.client.sync import Producer, QueueReader
from tianzhou.testing import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(topics={"orders": 2, "quiet": 1}) as it:
        yield it


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIANZHOU_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def cli(cluster: Cluster) -> Cli:
    return Cli(cluster.namesrv_address)


def send(cli: Cli, topic: str, body: str, *more: str) -> str:
    return str(cli("message", "send", topic, body, *more, "--json").json[0]["message_id"])


def test_message_is_found_by_id_key_offset_and_time(cli: Cli) -> None:
    options = ("--tag", "paid", "--key", "k-7", "--key", "k-8", "--property", "amount=120")
    sent = cli("message", "send", "orders", "hello", *options, "--json").json[0]
    assert sent["status"] == "SEND_OK"
    for how in (
        ("query", "orders", "--key", "k-8"),
        ("query", "orders", "--unique-key", sent["message_id"]),
        ("query", "orders", "--from", "1m", "--tag", "paid", "--sql", "amount > 100"),
        ("query", "orders", "--from", "earliest", "--grep", "^hel+o$"),
    ):
        (found,) = cli("message", *how, "--json").json
        assert (found["id"], found["body"], found["tags"]) == (
            sent["message_id"], "hello", "paid",
        )  # fmt: skip
    for named in ((sent["offset_id"],), (sent["message_id"], "--topic", "orders")):
        told = cli("message", "show", *named, "--json").json
        assert told["properties"]["amount"] == "120"
        assert told["keys"] == ["k-7", "k-8"]
    place = ("--broker", "broker-0", "--queue", str(sent["queue_id"]))
    at = ("--offset", str(sent["queue_offset"]))
    assert cli("message", "at", "orders", *place, *at, "--json").json["body"] == "hello"
    assert "hello" in cli("message", "at", "orders", *place, *at, "--count", "2").out
    words = ["message", "entries", "orders", *place, *at, "--group", "nobody", "--json"]
    entry = cli(*words).json[0]
    assert entry["queue_offset"] == sent["queue_offset"]
    assert "hello" in cli("message", "query", "orders", "--key", "k-7").out
    assert "Properties" in cli("message", "show", sent["offset_id"]).out


def test_broker_option_overrides_address_in_offset_id(cli: Cli) -> None:
    (sent,) = cli("message", "send", "orders", "hello", "--json").json
    moved = "0A090909" + sent["offset_id"][8:]
    refused = cli.refused("message", "show", moved)
    assert "10.9.9.9:" in refused
    assert "is not a broker of this cluster, no request was sent to it" in refused
    at = ("--broker", sent["broker_name"])
    assert cli("message", "show", moved, *at, "--json").json["id"] == sent["message_id"]
    assert cli("message", "resend", moved, *at, "--json").json[0]["status"] == "SEND_OK"
    to = ("--group", "nobody", "--client", "none")
    assert "10.9.9.9" not in cli.refused("message", "push", moved, *to, *at)


def test_missing_messages_are_errors(cli: Cli) -> None:
    assert cli("message", "query", "orders", "--key", "nothing", "--json").json == []
    assert "0 messages" in cli("message", "query", "quiet", "--from", "earliest").out
    assert "also pass --topic TOPIC" in cli.refused("message", "show", "7F000001" + "0" * 24)
    assert "this is not a message id" in cli.refused("message", "show", "xyz")
    place = ("--broker", "broker-0", "--queue", "0", "--offset", "99")
    assert "no message at 99" in cli.refused("message", "at", "quiet", *place)
    assert "there is no topic" in cli.refused("message", "send", "none", "x")
    words = ["message", "send", "orders", "x", "--queue", "9"]
    assert "the topic has: broker-0/0, broker-0/1" in cli.refused(*words)
    words = ["message", "query", "orders", "--key", "a", "--unique-key", "b"]
    assert "exclude each other" in cli.refused(*words, code=2)


def test_query_by_key_reads_pages_up_to_the_limit(cli: Cli) -> None:
    """A broker's index gives 64 at once; conditions are looked at here."""
    first = send(cli, "orders", "the first", "--key", "busy")
    cli("message", "send", "orders", "one of many", "--key", "busy", "--count", "150")
    by_key = ("message", "query", "orders", "--key", "busy", "--json")
    assert [each["id"] for each in cli(*by_key, "--grep", "first").json] == [first]
    everything = cli(*by_key, "--limit", "1000").json
    assert len({each["id"] for each in everything}) == len(everything) == 151
    newest = [each["id"] for each in cli(*by_key, "--limit", "100").json]
    assert newest == [each["id"] for each in everything[-100:]]


def test_query_by_key_warns_if_incomplete(cli: Cli, cluster: Cluster) -> None:
    """Messages of a batch are stored at one time, so none is older than another."""
    with Producer("crowd", namesrv=cluster.namesrv_address) as producer:
        producer.send_many([Message("quiet", b"x", keys=["crowd"])] * 100)
    ran = cli("message", "query", "quiet", "--key", "crowd", "--limit", "90", "--json")
    assert len(ran.json) == 64
    assert "more than those have this key within one second" in ran.err


def test_bodies_from_files_and_input(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "body.bin"
    file.write_bytes(b"\x00\xff")
    cli("message", "send", "quiet", "--file", str(file), "--key", "binary")
    (found,) = cli("message", "query", "quiet", "--key", "binary", "--json").json
    assert found["body_base64"] == "AP8="
    assert "00 ff" in cli("message", "show", found["offset_id"]).out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n\nthree")))
    sent = cli("message", "send", "quiet", "--lines", "--tag", "line", "--json").json
    assert len(sent) == 3
    shown = cli("message", "query", "quiet", "--from", "earliest", "--tag", "line", "--json").json
    assert [each["body"] for each in shown] == ["one", "two", "three"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"whole\ninput")))
    sent = cli("message", "send", "quiet", "-", "--json").json
    assert cli("message", "show", sent[0]["offset_id"], "--json").json["body"] == "whole\ninput"


def test_tail_shows_stored_and_new_messages(cli: Cli) -> None:
    cli("topic", "create", "tailed", "--queues", "2")
    for number in range(6):
        tag = "even" if number % 2 == 0 else "odd"
        send(cli, "tailed", f"m{number}", "--tag", tag, "--property", f"n={number}")
    tail = ("message", "tail", "tailed", "--since", "earliest", "--json")
    assert {each["body"] for each in cli(*tail, "--count", "6").lines} == {
        f"m{number}" for number in range(6)
    }
    assert {each["body"] for each in cli(*tail, "--tag", "odd", "--count", "3").lines} == {
        "m1", "m3", "m5",
    }  # fmt: skip
    assert {each["body"] for each in cli(*tail, "--sql", "n > 3", "--count", "2").lines} == {
        "m4", "m5",
    }  # fmt: skip
    (found,) = cli(*tail, "--grep", "m2", "--idle", "1").lines
    assert found["tags"] == "even"
    shown = cli("message", "tail", "tailed", "--since", "1h", "--count", "1").out
    assert "broker-0/" in shown
    assert cli("message", "tail", "tailed", "--idle", "0.2").out == "", "nothing new came"


def test_delayed_messages(cli: Cli, cluster: Cluster) -> None:
    cli("message", "send", "quiet", "later", "--delay-level", "3", "--key", "later")
    cluster.advance(seconds=11)
    (found,) = cli(
        "message", "tail", "quiet", "--since", "earliest", "--grep", "later", "--count", "1",
        "--json",
    ).lines  # fmt: skip
    assert found["body"] == "later"


def test_message_traces_are_shown(cli: Cli) -> None:
    cli("topic", "create", "traces", "--queues", "1")
    traces = ("--trace-topic", "traces")
    fields = ["Pub", "1700000000000", "r", "pg", "orders", "ID9", "", "k", "h:1", "1", "3", "0",
              "OFF", "true"]  # fmt: skip
    cli("message", "send", "traces", "\x01".join(fields) + "\x02", "--key", "ID9")
    (event,) = cli("message", "trace", "ID9", *traces, "--json").json
    assert (event["kind"], event["group"], event["cost_ms"]) == ("Pub", "pg", 3)
    assert "sent" in cli("message", "trace", "ID9", *traces).out
    assert "no trace of ID8" in cli.refused("message", "trace", "ID8", *traces)


def test_dead_letters_are_listed_resent_and_exported(cli: Cli, tmp_path: Path) -> None:
    cli("group", "create", "billing")
    assert "0 groups with dead letters" in cli("dlq", "list").out
    assert "has no dead letters" in cli.refused("dlq", "list", "billing")
    for topic in ("%DLQ%billing", "%RETRY%billing"):
        cli("topic", "update", topic, "--or-create", "--queues", "1")
    origin = ("--property", "RETRY_TOPIC=orders", "--tag", "paid")
    first = send(cli, "%DLQ%billing", "dead one", *origin)
    send(cli, "%DLQ%billing", "dead two", *origin)
    (row,) = cli("dlq", "list", "--json").json
    assert (row["group"], row["count"]) == ("billing", 2)
    listed = cli("dlq", "list", "billing", "--json").json
    assert [each["body"] for each in listed] == ["dead one", "dead two"]
    assert (
        "would send 2 dead letters to %RETRY%billing"
        in cli("dlq", "resend", "billing", "--dry-run").out
    )
    cli("dlq", "resend", "billing", "--id", first, "--yes")
    (again,) = cli("message", "query", "%RETRY%billing", "--from", "earliest", "--json").json
    assert (again["body"], again["tags"]) == ("dead one", "paid")
    assert again["properties"]["RETRY_TOPIC"] == "orders"
    assert again["properties"]["ORIGIN_MESSAGE_ID"] == first
    cli("dlq", "resend", "billing", "--to-topic", "orders", "--yes")
    (back,) = cli("message", "query", "orders", "--from", "5m", "--grep", "dead two", "--json").json
    assert "RETRY_TOPIC" not in back["properties"]
    assert "only 0 of 1" in cli.refused("dlq", "resend", "billing", "--id", "nobody", "--yes")
    file = tmp_path / "dead.jsonl"
    assert "2 dead letters written" in cli("dlq", "export", "billing", "--to", str(file)).out
    assert [json.loads(line)["body"] for line in file.read_text().splitlines()] == [
        "dead one", "dead two",
    ]  # fmt: skip
    assert len(cli("dlq", "export", "billing", "--to", "-").lines) == 2
    assert "directory" in cli.refused("dlq", "export", "billing", "--to", "/", code=2)


def test_show_lists_groups_that_consumed_a_message(cli: Cli) -> None:
    cli("topic", "create", "seen", "--queues", "1")
    cli("group", "create", "reader")
    message_id = send(cli, "seen", "x")
    cli("offset", "reset", "reader", "seen", "--to", "earliest", "--yes")
    words = ["message", "show", message_id, "--topic", "seen", "--json"]
    assert cli(*words).json["groups"][0]["state"] == "not yet consumed"
    cli("offset", "skip", "reader", "seen", "--yes")
    assert cli(*words).json["groups"][0]["state"] == "consumed"


def test_bench(cli: Cli) -> None:
    cli("topic", "create", "fast", "--queues", "2")
    words = ["bench", "send", "fast", "--count", "200", "--size", "100", "--concurrency", "8"]
    told = cli(*words, "--json").json
    assert (told["messages"], told["failures"]) == (200, 0)
    assert set(told["latency_ms"]) == {"p50", "p90", "p99", "p99.9", "max"}
    assert "latency p99" in cli(*words).out
    assert cli("bench", "receive", "fast", "--json").json["messages"] == 400
    some = cli("bench", "receive", "fast", "--count", "30", "--json")
    assert (some.json["messages"], some.err) == (30, "")
    live = cli("bench", "receive", "fast", "--live", "--seconds", "0.3", "--json").json
    assert live["messages"] == 0
    timed = cli("bench", "send", "fast", "--seconds", "0.2", "--json").json
    assert timed["messages"] > 0
    words = ["bench", "send", "fast", "--count", "1", "--seconds", "1"]
    assert "exclude each other" in cli.refused(*words, code=2)
    assert "there is no topic" in cli.refused("bench", "send", "none")


def test_timed_message_is_recalled_by_id(tmp_path: Path) -> None:
    with (
        Cluster(folder=tmp_path / "timers", topics={"later": 1}, recallMessageEnable="true") as own,
        Producer("timing", namesrv=own.namesrv_address) as producer,
        QueueReader("timing", namesrv=own.namesrv_address) as reader,
    ):
        cli = Cli(own.namesrv_address)
        gone = producer.send("later", b"gone", delay=30)
        producer.send("later", b"kept", delay=30)
        words = ("message", "recall", gone.msg_id, "--topic", "later")
        assert "would recall 1 message of later" in cli(*words, "--dry-run").out
        assert "recalled on broker-0" in cli(*words, "--yes").out
        own.advance(seconds=31)
        (queue,) = reader.queues("later")
        pulled = reader.pull(queue, 0, wait_ms=30_000, timeout_ms=60_000)
        assert [each.body for each in pulled.messages] == [b"kept"]
        at_once = producer.send("later", b"at once")
        why = cli.refused("message", "recall", at_once.msg_id, "--topic", "later", "--yes")
        assert f"no timed message {at_once.msg_id} of later is pending" in why
