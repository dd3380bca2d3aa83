"""When tables of a master are read, which of them a slave may apply, and announced changes."""

import pytest

from tianzhou.errors import ReplicationError
from tianzhou.ha.tables import (
    APACHE_INTERVAL_S,
    INTERVAL_S,
    Master,
    PendingTables,
    Table,
    TableChange,
    TableCopy,
    decode_changes,
    encode_change,
    next_read_s,
)
from tianzhou.protocol.bodies.topics import TopicConfig

OURS, APACHE = Master("127.0.0.1:1", is_ours=True), Master("127.0.0.1:1", is_ours=False)


def test_a_table_waits_until_the_log_has_reached_its_end() -> None:
    pending = PendingTables()
    copy = TableCopy(Table.DELAYS, {}, end_offset=500)
    pending.put(copy)
    assert pending.ready(499) == []
    assert pending.end_offset(Table.DELAYS) == 500
    assert pending.ready(500) == [copy]
    assert Table.DELAYS in pending, "until it is applied"
    pending.remove(copy)
    assert pending.ready(500) == []
    assert pending.end_offset(Table.DELAYS) is None


def test_each_table_waits_for_its_own_end() -> None:
    pending = PendingTables()
    topics, timer = TableCopy(Table.TOPICS, {}, 100), TableCopy(Table.TIMER, b"", 200)
    pending.put(topics)
    pending.put(timer)
    assert pending.ready(150) == [topics]
    assert pending.ready(200) == [topics, timer]


def test_at_most_one_version_of_a_table_waits() -> None:
    pending = PendingTables()
    first, second = TableCopy(Table.MODES, {}, 100), TableCopy(Table.MODES, {}, 300)
    pending.put(first)
    pending.put(second)
    pending.remove(first)
    assert len(pending) == 1
    assert pending.ready(300) == [second]


def test_a_table_that_takes_long_to_read_is_read_more_rarely() -> None:
    assert next_read_s(OURS, 0.001) == INTERVAL_S
    assert next_read_s(OURS, 0.4) == 4.0
    assert next_read_s(OURS, 60.0) == APACHE_INTERVAL_S
    assert next_read_s(APACHE, 0.001) == APACHE_INTERVAL_S


def test_announced_changes_are_read_back_and_those_of_unknown_tables_skipped() -> None:
    topic = TopicConfig(topic_name="t", order=True, attributes={"message.type": "FIFO"})
    change = TableChange(table="topics", counter=7, topic=topic)
    other = TableChange(table="groups", counter=8)
    later = TableChange(table="of a later version", counter=9)
    lines = b"".join(encode_change(each) + b"\n" for each in (change, later, other))
    assert list(decode_changes(lines)) == [change, other]


@pytest.mark.parametrize("lines", [b"x\n", b"[]\n", b'{"table":"topics"}\n', b"\xff\n"])
def test_announced_changes_that_cannot_be_read_are_an_error(lines: bytes) -> None:
    with pytest.raises(ReplicationError, match="cannot be read"):
        list(decode_changes(lines))
