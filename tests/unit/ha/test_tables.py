"""When tables of a master are read, and which of them a slave may apply."""

from tianzhou.ha.tables import (
    APACHE_INTERVAL_S,
    INTERVAL_S,
    Master,
    PendingTables,
    Table,
    TableCopy,
    next_read_s,
)

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
