"""Traces in the formats of 4.9 and 5.x clients."""

from tianzhou.admin.trace import parse_trace

SENT = "\x01".join(
    ["Pub", "1700", "region", "pg", "orders", "ID1", "paid", "k1", "10.0.0.7:10911", "5", "3",
     "0", "OFFSET", "true", "10.0.0.9"]
)  # fmt: skip
BEFORE = "\x01".join(["SubBefore", "1800", "region", "cg", "req", "ID1", "2", "k1"])
AFTER = "\x01".join(["SubAfter", "req", "ID1", "12", "false", "k1", "3", "1900", "cg"])
AFTER_OLD = "\x01".join(["SubAfter", "req", "ID1", "12", "true", "null", "0"])


def test_a_message_from_its_sending_to_its_consumption() -> None:
    events = parse_trace("\x02".join([SENT, BEFORE, AFTER, ""]), "10.0.0.9")
    sent, before, after = events
    assert (sent.kind, sent.group, sent.topic, sent.tags) == ("Pub", "pg", "orders", "paid")
    assert (sent.cost_ms, sent.success) == (3, True)
    assert (before.kind, before.retries, before.time_ms) == ("SubBefore", 2, 1800)
    assert (after.success, after.cost_ms, after.group, after.time_ms) == (False, 12, "cg", 1900)


def test_records_of_older_clients_have_fewer_fields() -> None:
    (event,) = parse_trace(AFTER_OLD + "\x02", "h")
    assert (event.success, event.time_ms, event.keys) == (True, 0, None)


def test_a_transaction_and_a_recall() -> None:
    ended = "\x01".join(
        ["EndTransaction", "1", "r", "pg", "t", "ID1", "", "", "h", "2", "TX", "COMMIT_MESSAGE",
         "false"]
    )  # fmt: skip
    recalled = "\x01".join(["Recall", "2", "r", "pg", "t", "ID1", "true"])
    first, second = parse_trace(f"{ended}\x02{recalled}\x02", "h")
    assert first.detail == "COMMIT_MESSAGE"
    assert (second.kind, second.success) == ("Recall", True)


def test_malformed_records_are_skipped() -> None:
    assert parse_trace("Pub\x01x\x02nonsense\x02SubBefore\x02\x02", "h") == []
