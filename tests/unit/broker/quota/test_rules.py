"""The quota file: its rules, and errors of invalid files."""

import os
from pathlib import Path

import pytest

from tianzhou.broker.quota.rules import make_rules, parse_quota, read_rules
from tianzhou.errors import ConfigError
from tianzhou.remoting.quota.buckets import Rate

WHOLE = """
connections: {perBroker: 20000, perAddress: 500}
inFlight: {unreadBytes: 1, unsentBytes: 2, handledBytes: 3}
burstSeconds: 2
clients:
  - {address: 10.1.2.*, requestsPerSecond: 5000}
  - {address: "*", requestsPerSecond: 100}
topics:
  - {topic: orders, messagesPerSecond: 1000, bytesPerSecond: 1048576}
  - {topic: "order*", messagesPerSecond: 0.5}
  - {topic: 12345, bytesPerSecond: 7}
groups:
  - {group: "report-?", pullsPerSecond: 50}
"""


def test_first_matching_rule_counts() -> None:
    rules = make_rules(parse_quota(WHOLE))
    assert rules.client("10.1.2.3") == Rate(5000, 2)
    assert rules.client("10.1.3.3") == Rate(100, 2)
    assert rules.client("[::1]") == Rate(100, 2)
    orders = rules.topic("orders")
    assert orders is not None
    assert (orders.messages, orders.size_bytes) == (Rate(1000, 2), Rate(1048576, 2))
    other = rules.topic("orders-eu")
    assert other is not None
    assert (other.messages, other.size_bytes) == (Rate(0.5, 2), None)
    number = rules.topic("12345")
    assert number is not None
    assert number.size_bytes == Rate(7, 2)
    assert rules.topic("invoices") is None
    assert rules.group("report-1") == Rate(50, 2)
    assert rules.group("report-12") is None
    assert (rules.connections.per_broker, rules.connections.per_address) == (20000, 500)
    assert rules.in_flight.handled_bytes == 3
    assert rules.count == 11


def test_invalid_address_matches_no_rule() -> None:
    rules = make_rules(parse_quota('clients: [{address: "*", requestsPerSecond: 1}]'))
    assert rules.client("?") is None


@pytest.mark.parametrize("text", ["", "\n# nothing yet\n", "{}", "topics:\nclients: []"])
def test_a_file_may_limit_nothing(text: str) -> None:
    if text.startswith("topics:"):
        with pytest.raises(ConfigError):
            parse_quota(text)
        return
    assert make_rules(parse_quota(text)).count == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("topic: []", "unknown name 'topic', meant was perhaps topics"),
        ("topics: [{topic: a, messagePerSecond: 1}]", "perhaps messagesPerSecond"),
        ("connections: {perAdress: 1}", "perhaps perAddress"),
        ("connections: {perBroker: 0}", "perBroker is 0, it must be above 0"),
        ("inFlight: {unsentBytes: -1}", "unsentBytes is -1, it must be above 0"),
        ("topics: [{topic: a, messagesPerSecond: nan}]", "messagesPerSecond is nan"),
        ("topics: [{topic: a, messagesPerSecond: inf}]", "messagesPerSecond is inf"),
        ("topics: [{topic: a}, {topic: b, bytesPerSecond: 0}]", "topics, rule 2: bytesPerSecond"),
        ("topics: [{topic: a, messagesPerSecond: many}]", "messagesPerSecond"),
        ("topics: [{messagesPerSecond: 1}]", "topic"),
        ("topics: [orders]", "topics must be a map"),
        ("groups: {group: a, pullsPerSecond: 1}", "groups"),
        ('topics: [{topic: "", messagesPerSecond: 1}]', "empty name"),
        ("clients: [{address: 10.1, requestsPerSecond: 1}]", "is no address"),
        ('clients: [{address: " ", requestsPerSecond: 1}]', "empty address"),
        ("burstSeconds: 0", "burstSeconds is 0"),
        ("burstSeconds: nan", "burstSeconds is nan"),
        ("- a", "the file must be a map"),
        ("topics: [", "no YAML"),
        ("[" * 5000, "no YAML"),
    ],
)
def test_invalid_files_are_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason.replace("[", r"\[")):
        make_rules(parse_quota(text))


def test_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "quota.yml"
    with pytest.raises(ConfigError, match=r"quota\.yml: cannot be read"):
        read_rules(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"quota\.yml: cannot be read"):
        read_rules(path)
    path.write_text("nonsense: 1")
    with pytest.raises(ConfigError, match=r"quota\.yml: the file has an unknown name"):
        read_rules(path)
    os.mkfifo(tmp_path / "pipe")
    for strange in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ConfigError, match="is no ordinary file"):
            read_rules(strange)
    path.write_text("#" + "x" * (4 * 1024 * 1024))
    with pytest.raises(ConfigError, match="larger than"):
        read_rules(path)


def test_memory_for_answers_is_bounded() -> None:
    rules = make_rules(parse_quota('topics: [{topic: "t*", messagesPerSecond: 1}]'))
    for number in range(70_000):
        assert rules.topic(f"t{number}") is not None
    assert rules.topic("u") is None
