"""Which quota a request is charged to, and changes of the file."""

import logging
from pathlib import Path

import pytest

from tianzhou.broker import handlers as broker_handlers
from tianzhou.broker.quota.body_limits import LONGER
from tianzhou.broker.quota.control import Quotas, message_count
from tianzhou.broker.quota.rules import Rules
from tianzhou.errors import ConfigError, RequestError
from tianzhou.limits import BODY_BYTES_MAX
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.records.batch import BatchItem
from tianzhou.protocol.records.batch import encode as encode_batch
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.quota.body_limits import check_body

PEER = "10.0.0.1:4711"


class Kit:
    """Quotas from a text, with a manual clock."""

    def __init__(self, folder: Path, text: str) -> None:
        self.path = folder / "quota.yml"
        self.path.write_text(text)
        self.now_ms = 1_000_000
        self.applied: list[Rules] = []
        self.quotas = Quotas(self.path, lambda: self.now_ms, self.applied.append)

    def refused(self, request: Command, peer: str = PEER) -> str:
        """The remark, or nothing if the request passes."""
        try:
            self.quotas.check_client(peer, request)
            self.quotas.check_work(request)
        except RequestError as e:
            return e.remark if e.code == ResponseCode.SYSTEM_BUSY else f"code {e.code}"
        return ""


def send(topic: str, size_bytes: int = 10, *, code: int = RequestCode.SEND_MESSAGE_V2) -> Command:
    long = (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)
    name = "topic" if code in long else "b"
    return Command(code=code, ext_fields={name: topic}, body=b"x" * size_bytes)


def pull(group: str, code: int = RequestCode.PULL_MESSAGE) -> Command:
    return Command(code=code, ext_fields={"consumerGroup": group, "topic": "t"})


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    ],
)
def test_messages_of_a_topic(tmp_path: Path, code: int) -> None:
    kit = Kit(tmp_path, "topics: [{topic: orders, messagesPerSecond: 2}]")
    assert [kit.refused(send("orders", code=code)) for _ in range(3)] == [
        "", "", "broker busy: messagesPerSecond of topic orders is 2",
    ]  # fmt: skip
    assert not kit.refused(send("invoices", code=code))
    kit.now_ms += 600
    assert not kit.refused(send("orders", code=code))
    assert kit.quotas.refused == {"messagesPerSecond": 1}


def test_bytes_of_a_topic_and_a_refusal_costs_nothing(tmp_path: Path) -> None:
    kit = Kit(tmp_path, "topics: [{topic: a, messagesPerSecond: 3, bytesPerSecond: 100}]")
    assert not kit.refused(send("a", 500))
    assert kit.refused(send("a")) == "broker busy: bytesPerSecond of topic a is 100"
    kit.now_ms += 5_000
    # Had the refused one been charged, there would be fewer than three messages left.
    assert [bool(kit.refused(send("a", 1))) for _ in range(4)] == [False, False, False, True]


def test_a_batch_counts_its_messages(tmp_path: Path) -> None:
    kit = Kit(tmp_path, "topics: [{topic: a, messagesPerSecond: 10}]")
    body = encode_batch([BatchItem(b"x")] * 20)
    batch = Command(code=RequestCode.SEND_BATCH_MESSAGE, ext_fields={"b": "a"}, body=body)
    assert message_count(batch) == 20
    assert not kit.refused(batch)
    kit.now_ms += 1000
    assert kit.refused(send("a"))
    kit.now_ms += 200
    assert not kit.refused(send("a"))


@pytest.mark.parametrize(
    ("code", "fields", "body", "count"),
    [
        (RequestCode.SEND_MESSAGE_V2, {"m": "true"}, encode_batch([BatchItem(b"")] * 3), 3),
        (RequestCode.SEND_MESSAGE, {"batch": "true"}, encode_batch([BatchItem(b"")] * 3), 3),
        (RequestCode.SEND_MESSAGE_V2, {"m": "TRUE"}, encode_batch([BatchItem(b"")] * 3), 3),
        (RequestCode.SEND_MESSAGE_V2, {"m": "1"}, encode_batch([BatchItem(b"")] * 3), 3),
        (RequestCode.SEND_REPLY_MESSAGE, {"batch": "True"}, encode_batch([BatchItem(b"")] * 3), 3),
        (RequestCode.SEND_MESSAGE, {"m": "true"}, encode_batch([BatchItem(b"")] * 3), 1),
        (RequestCode.SEND_BATCH_MESSAGE, {}, b"", 1),
        (RequestCode.SEND_BATCH_MESSAGE, {}, b"\0" * 100, 1),
        (RequestCode.SEND_BATCH_MESSAGE, {}, b"\xff" * 100, 1),
        (RequestCode.SEND_BATCH_MESSAGE, {}, b"\x7f" * 100, 1),
        (RequestCode.SEND_BATCH_MESSAGE, {}, b"\0\0\0\1" * 9, 1),
    ],
)
def test_hostile_batches_are_counted_in_a_bounded_way(
    code: int, fields: dict[str, str], body: bytes, count: int
) -> None:
    assert message_count(Command(code=code, ext_fields=fields, body=body)) == count


@pytest.mark.parametrize(
    "code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.POP_MESSAGE]
)
def test_pulls_of_a_group(tmp_path: Path, code: int) -> None:
    kit = Kit(tmp_path, "groups: [{group: slow, pullsPerSecond: 1}]")
    assert not kit.refused(pull("slow", code))
    assert kit.refused(pull("slow", code)) == "broker busy: pullsPerSecond of group slow is 1"
    assert not kit.refused(pull("other", code))


def test_addresses_have_buckets_of_their_own(tmp_path: Path) -> None:
    kit = Kit(tmp_path, 'clients: [{address: "10.*.*.*", requestsPerSecond: 1}]')
    assert not kit.refused(send("a"))
    # Another connection of the same address shares the bucket.
    remark = kit.refused(send("b"), "10.0.0.1:5")
    assert remark == "broker busy: requestsPerSecond of address 10.0.0.1 is 1"
    assert not kit.refused(send("a"), "10.0.0.2:4711")
    assert not any(kit.refused(send("a"), "192.168.0.1:1") for _ in range(50))
    assert not any(kit.refused(send("a"), "?") for _ in range(50))


def test_heartbeats_have_a_limited_reserve(tmp_path: Path) -> None:
    kit = Kit(tmp_path, 'clients: [{address: "*", requestsPerSecond: 3}]')
    heartbeat = Command(code=RequestCode.HEART_BEAT)
    assert [bool(kit.refused(send("a"))) for _ in range(4)] == [False, False, False, True]
    assert [bool(kit.refused(heartbeat)) for _ in range(4)] == [False, False, False, True]


def test_requests_of_other_kinds_are_not_charged(tmp_path: Path) -> None:
    text = 'topics: [{topic: "*", messagesPerSecond: 1}]\ngroups: [{group: "*", pullsPerSecond: 1}]'
    kit = Kit(tmp_path, text)
    other = Command(code=RequestCode.GET_MAX_OFFSET, ext_fields={"topic": "a", "b": "a"})
    assert not any(kit.refused(other) for _ in range(50))
    assert not kit.refused(send("a"))


def test_requests_allowed_on_the_fast_path(tmp_path: Path) -> None:
    text = "clients: [{address: 10.0.0.1, requestsPerSecond: 1}]\n"
    text += "topics: [{topic: a, bytesPerSecond: 1}]\ngroups: [{group: g, pullsPerSecond: 1}]"
    quotas = Kit(tmp_path, text).quotas
    assert not quotas.is_free_client(PEER)
    assert quotas.is_free_client("10.0.0.2:1")
    assert (quotas.is_free_topic("a"), quotas.is_free_topic("b")) == (False, True)
    assert (quotas.is_free_group("g"), quotas.is_free_group("h")) == (False, True)


def test_changed_file_is_applied_with_full_buckets(tmp_path: Path) -> None:
    kit = Kit(tmp_path, "topics: [{topic: a, messagesPerSecond: 1}]")
    assert not kit.refused(send("a"))
    assert kit.refused(send("a"))
    kit.quotas.poll()
    assert not kit.applied
    kit.path.write_text("topics: [{topic: a, messagesPerSecond: 22}]")
    kit.quotas.poll()
    assert kit.applied == [kit.quotas.rules]
    assert [bool(kit.refused(send("a"))) for _ in range(23)] == [False] * 22 + [True]


@pytest.mark.parametrize("broken", ["topics: [", "topics: [{topic: a, mesages: 1}]", None])
def test_invalid_or_missing_file_retains_the_last_rules_and_is_logged(
    tmp_path: Path, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    kit = Kit(tmp_path, "topics: [{topic: a, messagesPerSecond: 1}]")
    before = kit.quotas.rules
    if broken is None:
        kit.path.unlink()
    else:
        kit.path.write_text(broken)
    with caplog.at_level(logging.ERROR):
        kit.quotas.poll()
        kit.quotas.poll()
    assert kit.quotas.rules is before
    assert caplog.text.count("the last good rules stay in force") == 1
    assert not kit.refused(send("a"))
    assert kit.refused(send("a"))
    kit.path.write_text("")
    kit.quotas.poll()
    assert not any(kit.refused(send("a")) for _ in range(9))


def test_start_needs_a_valid_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="quota"):
        Quotas(tmp_path / "quota.yml", lambda: 0, lambda _: None)


def test_flood_of_refusals_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kit = Kit(tmp_path, "topics: [{topic: a, messagesPerSecond: 1}]")
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            kit.refused(send("a"))
    assert caplog.text.count("requests are refused") == 1
    assert kit.quotas.refused == {"messagesPerSecond": 999}


def test_the_file_changes_the_limits_of_the_ports_that_it_names(tmp_path: Path) -> None:
    plain = Limits(idle_ms=7)
    text = "connections: {perBroker: 9, perAddress: 3}\ninFlight: {unreadBytes: 4, unsentBytes: 5}"
    limits = Kit(tmp_path, text).quotas.limits_by(plain)
    assert (limits.connections, limits.connections_per_address) == (9, 3)
    assert (limits.kept_bytes, limits.unsent_bytes, limits.idle_ms) == (4, 5, 7)
    assert limits.handled_bytes == plain.handled_bytes


# -- bodies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code", [RequestCode.GET_MAX_OFFSET, RequestCode.HEART_BEAT, RequestCode.UPDATE_BROKER_CONFIG,
             RequestCode.LOCK_BATCH_MQ, 99_999],
)  # fmt: skip
def test_a_body_that_is_too_long_is_refused_with_both_figures(code: int) -> None:
    max_bytes = LONGER.get(code, BODY_BYTES_MAX)
    assert max_bytes is not None
    check_body(Command(code=code, body=b"x" * max_bytes), LONGER)
    with pytest.raises(RequestError, match=f"{max_bytes + 1} bytes, {max_bytes} are allowed"):
        check_body(Command(code=code, body=b"x" * (max_bytes + 1)), LONGER)


def test_bodies_of_sends_have_no_limit_here() -> None:
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
        check_body(Command(code=code, body=b"x" * (16 * 1024 * 1024)), LONGER)
    assert RequestCode.PULL_MESSAGE not in LONGER


def test_every_request_whose_body_is_read_has_its_limit() -> None:
    """A handler that decodes a body does it with `decode_request`, or has a short one."""
    folder = Path(broker_handlers.__file__).parent
    loose = {
        path.name for path in folder.glob("*.py") if "bodies import decode as" in path.read_text()
    }
    # These two decode responses to the broker's own requests.
    assert loose == {"assignment.py", "client_calls.py"}
    assert [code for code, max_bytes in LONGER.items() if max_bytes is None] == [
        RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2,
    ]  # fmt: skip
