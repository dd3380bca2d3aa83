"""Which queues the fast path retains, for any number of queues and messages."""

import math

import pytest
from tests.property.test_fast_path import PEERS, Now, Side, send_frame

from tianzhou.protocol.bodies.topics import TopicConfig

PAIRS: dict[str, object] = {
    "mappedFileSizeCommitLog": 4 << 20,
    "mappedFileSizeConsumeQueue": 20 * 10_000,
    "messageIndexEnable": "false",
}
"""Log files with space, so that only queue files fill up."""


@pytest.fixture(autouse=True)
def _all_in_one_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of a loop iteration must not depend on the speed of the machine."""
    monkeypatch.setattr("tianzhou.remoting.connection._SHARE_S", math.inf)


def side_with(queue_count: int, **pairs: object) -> Side:
    side = Side(True, Now(), PEERS[0], PAIRS | pairs)
    side.topics.put(
        TopicConfig(
            topic_name="orders",
            read_queue_count=queue_count,
            write_queue_count=queue_count,
            perm=6,
        )
    )
    return side


async def test_queue_that_outgrows_its_memory_stays_on_the_fast_path() -> None:
    """It starts in memory, gets more memory, and finally becomes a file."""
    side = side_with(1)
    count = 3000
    for first in range(0, count, 10):
        frames = [send_frame(number, b"x") for number in range(first, first + 10)]
        await side.arrive(b"".join(frames), [])
    assert -side.fed_count == 1, "only the first message of a queue is the handlers'"
    (queue,) = [queue for queue in side.store.queues.all() if queue.topic == "orders"]
    assert not queue.is_staged
    entries = list(queue.raw_entries(0, count))
    assert len(entries) == count == queue.next_offset
    ends = [log_offset + size_bytes for log_offset, size_bytes, _ in entries]
    assert [log_offset for log_offset, _, _ in entries] == [0, *ends[:-1]]
    side.close()


async def test_queues_in_memory_do_not_count_as_mapped() -> None:
    queue_count = 24
    side = side_with(queue_count, mappedQueueFilesMax=16)
    for number in range(3):
        for queue_id in range(queue_count):
            await side.arrive(send_frame(number, b"x", e=str(queue_id)), [])
    assert all(queue.is_staged for queue in side.store.queues.all())
    assert -side.fed_count == queue_count, "only the first message of a queue is the handlers'"
    side.close()


async def test_number_of_mapped_queues_of_the_fast_path_is_limited() -> None:
    """Excess queues return to the fast path with the next message that a handler stores."""
    queue_count = 12
    side = side_with(queue_count, mappedQueueFilesMax=16)
    for first in range(0, 2100, 10):
        for queue_id in range(queue_count):
            frames = [
                send_frame(number, b"", e=str(queue_id)) for number in range(first, first + 10)
            ]
            await side.arrive(b"".join(frames), [])
    assert not any(queue.is_staged for queue in side.store.queues.all())
    assert -side.fed_count > queue_count
    assert {queue.next_offset for queue in side.store.queues.all()} == {2100}
    side.close()
