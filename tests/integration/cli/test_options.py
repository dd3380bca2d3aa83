"""Options that no story of another test needs, each seen to do what its help says.

One cluster of two brokers serves all of them; every test has names of its own.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_line import Cli, run_words

from tianzhou.cli.shared import command as cli_session
from tianzhou.testing import Cluster

BOTH = ["broker-0", "broker-1"]


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


@pytest.fixture(scope="module")
def filled(cluster: Cluster) -> Cli:
    """Messages, a group that lags behind them, and dead letters, for tests that only read."""
    cli = Cli(cluster.namesrv_address)
    for number in range(4):
        place = ("--queue", str(number % 2), "--broker", BOTH[number // 2])
        cli("message", "send", "orders", f"order {number}", "--key", "k", *place)
    cli("group", "create", "reader")
    cli("offset", "reset", "reader", "orders", "--to", "earliest", "--yes")
    cli("topic", "update", "%DLQ%reader", "--or-create", "--queues", "1", "-b", "broker-0")
    for number in range(3):
        body = f"dead {number}"
        cli("message", "send", "%DLQ%reader", body, "--property", "RETRY_TOPIC=orders")
    return cli


# -- again and again -------------------------------------------------------------------------------

WATCHED = [
    "broker list", "broker show broker-0", "broker runtime broker-0", "broker lag broker-0",
    "broker ha broker-0", "cluster show", "topic show orders", "topic stats orders",
    "group list", "group show reader", "offset show reader",
    "pipeline status --database sqlite:///FOLDER/runs.db",
]  # fmt: skip
LIVE = ["cluster top", "cluster latency --count 1"]


@pytest.mark.parametrize("command", [*WATCHED, *LIVE])
def test_watch_refreshes_at_the_interval(
    filled: Cli, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = command.replace("FOLDER", str(tmp_path))
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(cli_session, "pause", pause)
    once = ["--once"] if command in LIVE else []
    alone = filled(*command.split(), *once).out
    assert pauses == []
    watch = [] if command in LIVE else ["--watch"]
    twice = filled(*command.split(), *watch, "--every", "7.5").out
    assert pauses == [7.5, 7.5]
    first_words = alone.split()[0]
    assert twice.count(first_words) >= 2


# -- only some of them -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "broker list", "broker clean topics --yes", "cluster show", "cluster top --once",
        "cluster latency --once --count 1", "group list",
        "group create of-cluster", "group delete of-cluster --yes",
    ],
)  # fmt: skip
def test_cluster_option_and_unknown_cluster(filled: Cli, command: str) -> None:
    words = command.split()
    assert "Elsewhere" in filled.refused(*words, "--cluster", "Elsewhere")
    filled(*words, "--cluster", "DefaultCluster")


def test_one_broker_of_two(filled: Cli) -> None:
    rows = filled("broker", "stats", "TOPIC_PUT_NUMS", "orders", "-b", "broker-1", "--json").json
    assert {row["broker"] for row in rows} == {"broker-1"}
    assert sum(row["sum"] for row in rows if row["period"] == "day") == 2
    shown = filled("broker", "show", "broker-1", "--json").json
    assert [each["broker"] for each in shown] == ["broker-1"]


def test_patterns_choose_names(filled: Cli) -> None:
    assert [row["group"] for row in filled("group", "list", "read*", "--json").json] == ["reader"]
    assert filled("group", "list", "nobody*", "--json").json == []
    everything = {row["group"] for row in filled("group", "list", "--all", "--json").json}
    assert {"reader", "TOOLS_CONSUMER"} <= everything
    assert "orders" in filled("topic", "stats", "ord*").out
    assert "orders" not in filled("topic", "stats", "nothing*").out
    shown = filled("namesrv", "config", "orderMessage*", "--json").json
    assert [list(pairs) for pairs in shown.values()] == [["orderMessageEnable"]]


def test_members_and_producers_that_are_connected(cluster: Cluster, filled: Cli) -> None:
    from tianzhou.client.sync import Producer

    filled("topic", "create", "sent-to", "--queues", "1")
    with Producer("senders", namesrv=cluster.namesrv_address) as producer:
        producer.send("sent-to", b"x")
        rows = filled("group", "producers", "send*", "--broker", "broker-0", "--json").json
        assert {(row["group"], row["broker"]) for row in rows} <= {("senders", "broker-0")}
        everywhere = filled("group", "producers", "--json").json
        assert "senders" in {row["group"] for row in everywhere}
        assert filled("group", "producers", "other*", "--json").json == []
    assert "nobody@1" in filled.refused("group", "members", "reader", "--client", "nobody@1")


def test_a_topic_of_a_group(filled: Cli) -> None:
    for noun, code in (("group", 0), ("offset", 1)):
        words = (noun, "show", "reader")
        assert '"topic": "orders"' in filled(*words, "--topic", "orders", "--json").out
        other = filled(*words, "--topic", "%RETRY%reader", "--json", code=code)
        assert '"topic": "orders"' not in other.out


# -- topics and groups -----------------------------------------------------------------------------


def brokers_of(cli: Cli, *words: str) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = cli(*words, "--json").json["brokers"]
    return told


def test_every_setting_of_a_topic(cli: Cli) -> None:
    made = ("--read-queues", "3", "--write-queues", "2", "--not-ordered")
    cli("topic", "create", "settings", *made, "--attribute", "message.type=FIFO")
    for each in brokers_of(cli, "topic", "show", "settings"):
        assert (each["read_queues"], each["write_queues"], each["ordered"]) == (3, 2, False)
        assert each["attributes"] == {"message.type": "FIFO"}
    cli("topic", "update", "settings", "--ordered", "--attribute", "message.type=NORMAL")
    for each in brokers_of(cli, "topic", "show", "settings"):
        assert (each["ordered"], each["attributes"]) == (True, {"message.type": "NORMAL"})
    cli("topic", "update", "settings", "--not-ordered")
    assert not any(each["ordered"] for each in brokers_of(cli, "topic", "show", "settings"))
    cli("topic", "create", "in-order", "--ordered")
    assert all(each["ordered"] for each in brokers_of(cli, "topic", "show", "in-order"))


SWITCHES = {
    "--consume": "--no-consume",
    "--broadcast": "--no-broadcast",
    "--from-min": "--not-from-min",
    "--orderly": "--not-orderly",
    "--notify": "--no-notify",
}
SETTINGS = ("consume", "broadcast", "from_min", "orderly", "notify")


def settings_of(cli: Cli, group: str) -> dict[str, dict[str, Any]]:
    told: dict[str, dict[str, Any]] = cli("group", "show", group, "--json").json["settings"]
    return told


@pytest.mark.parametrize("flags", [tuple(SWITCHES), tuple(SWITCHES.values())], ids=["on", "off"])
def test_every_switch_of_a_group(cli: Cli, flags: tuple[str, ...]) -> None:
    is_on = flags == tuple(SWITCHES)
    name = f"switched-{is_on}"
    cli("group", "create", name, *flags, "--broker-id", "0", "--broker-id-when-slow", "1")
    for told in settings_of(cli, name).values():
        assert {each: told[each] for each in SETTINGS} == dict.fromkeys(SETTINGS, is_on)
        assert (told["broker_id"], told["broker_id_when_slow"]) == (0, 1)
    others = SWITCHES.values() if is_on else SWITCHES
    cli("group", "update", name, *others, "--broker", "broker-1", "--broker-id", "1",
        "--broker-id-when-slow", "0", "--attribute", "priority.factor=100")  # fmt: skip
    changed = settings_of(cli, name)
    assert changed["broker-0"]["consume"] is is_on
    assert changed["broker-1"]["attributes"] == {"priority.factor": "100"}
    assert {each: changed["broker-1"][each] for each in SETTINGS} == dict.fromkeys(
        SETTINGS, not is_on
    )


def test_a_group_on_one_broker_and_its_offsets(cli: Cli) -> None:
    cli("group", "create", "partial", "--broker", "broker-0", "--attribute", "priority.factor=100")
    cli("topic", "create", "kept", "--queues", "1", "-b", "broker-0")
    cli("message", "send", "kept", "x")
    cli("offset", "reset", "partial", "kept", "--to", "earliest", "--yes")
    there = cli("group", "list", "partial", "--json").json
    assert [row["brokers"] for row in there] == [["broker-0"]]
    assert "would" in cli(
        "group", "copy", "partial", "--from", "broker-0", "--to", "broker-1", "--dry-run"
    ).out  # fmt: skip
    assert cli("group", "list", "partial", "--json").json == there
    cli("group", "delete", "partial", "--broker", "broker-0", "--keep-offsets", "--yes")
    assert cli("group", "list", "partial", "--json").json == []
    cli("group", "create", "partial", "--broker", "broker-0")
    kept = cli("group", "show", "partial", "--json").json["queues"]
    assert [each["lag"] for each in kept if each["topic"] == "kept"] == [1]
    cli("group", "delete", "partial", "--broker", "broker-0", "--yes")
    cli("group", "create", "partial", "--broker", "broker-0")
    gone = cli("group", "show", "partial", "--json").json["queues"]
    assert [each for each in gone if each["topic"] == "kept"] == []


# -- offsets and messages --------------------------------------------------------------------------


def test_offset_reset_dry_run(cli: Cli) -> None:
    cli("topic", "create", "places", "--queues", "1")
    for broker in BOTH:
        cli("message", "send", "places", "x", "--broker", broker, "--queue", "0")
    for group in ("here", "there"):
        cli("group", "create", group)
        cli("offset", "reset", group, "places", "--to", "earliest", "--yes")

    def lags(group: str) -> dict[str, int]:
        told = cli("group", "show", group, "--topic", "places", "--json").json["queues"]
        return {each["broker"]: each["lag"] for each in told}

    cli("offset", "skip", "here", "places", "--dry-run")
    assert lags("here") == {"broker-0": 1, "broker-1": 1}
    moved = cli("offset", "skip", "here", "places", "-b", "broker-1", "--yes", "--json").json
    assert {each["broker"] for each in moved} == {"broker-1"}
    assert lags("here") == {"broker-0": 1, "broker-1": 0}
    ran = cli("offset", "clone", "here", "there", "places", "--dry-run")
    assert "would move there to the offsets of here" in ran.out
    assert lags("there") == {"broker-0": 1, "broker-1": 1}


def bodies(ran: Any) -> set[str]:  # noqa: ANN401
    return {each["body"] for each in ran}


def test_messages_of_one_queue_of_one_broker(filled: Cli) -> None:
    for how in (("--from", "earliest"), ("--key", "k")):
        words = ("message", "query", "orders", *how, "--json")
        assert bodies(filled(*words, "--queue", "1", "--broker", "broker-1").json) == {"order 3"}
        assert bodies(filled(*words, "--queue", "0").json) == {"order 0", "order 2"}
        assert len(filled(*words, "--limit", "2").json) == 2
        assert filled(*words, "--to", "1d").json == []
        refusal = "no such queue" if how[0] == "--from" else "is not on broker 'none'"
        assert refusal in filled.refused("message", "query", "orders", *how, "--broker", "none")
    tail = ("message", "tail", "orders", "--since", "earliest", "--count", "1", "--json")
    (only,) = filled(*tail, "--queue", "1", "--broker", "broker-0").lines
    assert only["body"] == "order 1"
    entries = ("message", "entries", "orders", "-b", "broker-0", "--queue", "0", "--offset", "0")
    assert len(filled(*entries, "--count", "1", "--json").json) == 1


def test_dead_letters_since_a_time(filled: Cli, tmp_path: Path) -> None:
    later = ("--since", "now")
    assert len(filled("dlq", "list", "reader", "--since", "1h", "--json").json) == 3
    assert len(filled("dlq", "list", "reader", "--limit", "2", "--json").json) == 2
    assert filled("dlq", "list", "reader", *later, "--json").json == []
    assert "no dead letters to resend" in filled("dlq", "resend", "reader", *later, "--yes").out
    file = tmp_path / "dead.jsonl"
    ran = filled("dlq", "export", "reader", "--to", str(file), "--since", "1h", "--json")
    assert ran.json == {"count": 3, "file": str(file)}
    assert len(file.read_text().splitlines()) == 3
    filled("dlq", "export", "reader", "--to", str(file), *later)
    assert file.read_text() == ""
    filled("topic", "create", "again", "--queues", "1")
    sent = filled("dlq", "resend", "reader", "--to-topic", "again", "--yes", "--json").json
    assert len(sent) == 3


def test_a_benchmark_with_a_tag(cli: Cli) -> None:
    cli("topic", "create", "tagged", "--queues", "1")
    cli("bench", "send", "tagged", "--count", "3", "--tag", "loud")
    tail = ("message", "tail", "tagged", "--since", "earliest", "--tag", "loud", "--idle", "1")
    assert len(cli(*tail, "--count", "3", "--json").lines) == 3


# -- nameservers -----------------------------------------------------------------------------------


def test_pairs_and_settings_of_nameservers(cli: Cli) -> None:
    cli("namesrv", "kv", "put", "NS", "name", "value")
    assert cli("namesrv", "kv", "get", "NS", "name", "--json").json["value"] == "value"
    assert "would delete name" in cli("namesrv", "kv", "delete", "NS", "name", "--dry-run").out
    assert cli("namesrv", "kv", "get", "NS", "name").out == "value\n"
    cli("namesrv", "config", "--set", "orderMessageEnable=true", "--yes")
    told = cli("namesrv", "config", "orderMessageEnable", "--json").json
    assert list(told.values()) == [{"orderMessageEnable": "true"}]


# -- on this machine -------------------------------------------------------------------------------


def run_here(*words: str, code: int = 0) -> str:
    ran = run_words(words)
    assert ran.code == code, (words, ran)
    return ran.out


def test_contexts_are_used_and_removed() -> None:
    for name in ("one", "two"):
        run_here("context", "add", name, "-n", "127.0.0.1:1")
    run_here("context", "use", "two")
    assert json.loads(run_here("context", "list", "--json"))["current"] == "two"
    assert "would" in run_here("context", "remove", "one", "--dry-run")
    assert list(json.loads(run_here("context", "list", "--json"))["contexts"]) == ["one", "two"]
    run_here("context", "remove", "one", "--yes")
    assert list(json.loads(run_here("context", "list", "--json"))["contexts"]) == ["two"]


def test_the_version_and_the_completion() -> None:
    assert json.loads(run_here("version", "--json"))["kernel"] in ("compiled", "pure")
    assert "kernel: " in run_here("--version")
    assert "_TIANZHOU_COMPLETE" in run_here("completion", "bash")


def test_tls_init_folder_option(tmp_path: Path) -> None:
    run_here("tls", "init", "broker.example", "--folder", str(tmp_path / "certificates"))
    assert (tmp_path / "certificates" / "ca.pem").exists()
