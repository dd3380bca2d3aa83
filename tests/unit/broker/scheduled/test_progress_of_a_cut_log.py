"""The end of the log in `timercheck` and in the tables: read again, and missing in older files."""

import pytest

from tianzhou.broker.config import load_broker_config
from tianzhou.broker.scheduled.timer_checkpoint import (
    TimerCheckpoint,
    decode_checkpoint,
    encode_checkpoint,
)
from tianzhou.broker.tables.offsets import OffsetTable
from tianzhou.broker.tables.topics import TopicTable, system_topics
from tianzhou.remoting.scheduler import at_once

CHECK = TimerCheckpoint(1_700_000_000_000, 7, 5, 1_700_000_000_001, 4096)


@pytest.mark.parametrize("is_ours", [True, False])
def test_the_log_end_of_the_timer_is_read_again(is_ours: bool) -> None:
    assert decode_checkpoint(encode_checkpoint(CHECK, is_ours=is_ours)) == (CHECK, is_ours)


def test_files_without_a_log_end_do_not_know_it() -> None:
    """Those of RocketMQ and of older versions have zeros there."""
    content = encode_checkpoint(CHECK._replace(log_end=0))
    assert content[72:84] == bytes(12)
    assert decode_checkpoint(content) == (CHECK._replace(log_end=0), True)
    assert decode_checkpoint(content[:56]) == (CHECK._replace(log_end=0), False)


@pytest.mark.parametrize("position", [0, 16, 72, 79, 80, 83])
def test_a_changed_file_does_not_know_the_log_end(position: int) -> None:
    content = bytearray(encode_checkpoint(CHECK))
    content[position] ^= 1
    decoded = decode_checkpoint(bytes(content))
    assert decoded is not None
    assert decoded[0].log_end == 0


def test_the_table_of_topics_keeps_the_log_end() -> None:
    config = load_broker_config(environ={}).config
    table = TopicTable(system_topics(config), lambda: 1)
    table.log_end = 4096
    again = TopicTable(system_topics(config), lambda: 1)
    content = table.as_file()
    again.load({"dataVersion": {}, "topicConfigTable": {}, "logEndOffset": content["logEndOffset"]})
    assert again.log_end == 4096
    again.load({"dataVersion": {}, "topicConfigTable": {}})
    assert again.log_end == 0


def test_offsets_behind_the_end_of_their_queue_are_lowered() -> None:
    changes: list[int] = []
    table = OffsetTable(lambda: changes.append(1))
    ends = {("t", 0): 5, ("t", 1): 9, ("a@b", 0): 0}
    for topic, queue_id, at in (("t", 0, 8), ("t", 1, 9), ("gone", 0, 70), ("a@b", 0, 1)):
        table.commit("g", topic, queue_id, at)
    table.note_pull("g", "t", 0, 30)
    changes.clear()
    assert at_once(table.limit(lambda topic, queue_id: ends.get((topic, queue_id)))) == 2
    found = {
        (topic, queue): at for topic, _, queues in table.progress() for queue, at in queues.items()
    }
    assert found == {("t", 0): 5, ("t", 1): 9, ("gone", 0): 70, ("a@b", 0): 0}
    assert table.pulled("g", "t", 0) == 5
    assert changes, "a slave and the file get the lowered offsets"
