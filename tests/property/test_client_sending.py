"""The producer's decisions: round robin, faults, routes, batches."""

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tianzhou.client.connection.routes import route_of
from tianzhou.client.message import Message
from tianzhou.client.producer.selectors import by_hash
from tianzhou.client.queues import Queue
from tianzhou.client.sending.picker import Picker
from tianzhou.client.sending.send_request import batch_item, split
from tianzhou.names import PERM_READ, PERM_WRITE
from tianzhou.protocol import properties
from tianzhou.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from tianzhou.protocol.records import batch

NAMES = st.sampled_from(["a", "b", "c", "d"])
QUEUES = st.lists(
    st.builds(Queue, st.just("t"), NAMES, st.integers(0, 7)), min_size=1, max_size=24, unique=True
)


@given(QUEUES, st.integers(0, 1 << 16), st.integers(1, 4))
def test_queues_are_selected_round_robin(queues: list[Queue], first: int, rounds: int) -> None:
    picker = Picker(first_index=first)
    picked = Counter(picker.pick("t", queues, 0) for _ in range(len(queues) * rounds))
    assert picked == Counter(dict.fromkeys(queues, rounds))


@given(QUEUES, NAMES, st.integers(0, 50))
def test_retry_uses_another_broker_if_there_is_one(
    queues: list[Queue], last: str, first: int
) -> None:
    picked = Picker(first_index=first).pick("t", queues, 0, last)
    assert picked in queues
    if any(queue.broker_name != last for queue in queues):
        assert picked.broker_name != last


@given(QUEUES, st.lists(st.tuples(NAMES, st.integers(0, 40_000), st.booleans()), max_size=12))
def test_available_brokers_are_preferred(
    queues: list[Queue], notes: list[tuple[str, int, bool]]
) -> None:
    picker = Picker(use_faults=True)
    faults = picker.faults
    assert faults is not None
    for name, latency_ms, failed in notes:
        faults.note(name, latency_ms, 1_000, failed=failed)
    well = {queue.broker_name for queue in queues if faults.is_available(queue.broker_name, 1_000)}
    for _ in range(5):
        picked = picker.pick("t", queues, 1_000)
        assert picked in queues
        assert not well or picked.broker_name in well


@given(
    st.dictionaries(NAMES, st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 7))),
    st.dictionaries(NAMES, st.sets(st.integers(0, 2))),
)
def test_route_lists_readable_and_writable_queues(
    queues: dict[str, tuple[int, int, int]], brokers: dict[str, set[int]]
) -> None:
    data = TopicRouteData(
        queues=[
            QueueData(broker_name=name, write_queue_count=write, read_queue_count=read, perm=perm)
            for name, (write, read, perm) in queues.items()
        ],
        brokers=[
            BrokerData(broker_name=name, addresses={each: f"{name}{each}:1" for each in ids})
            for name, ids in brokers.items()
        ],
    )
    route = route_of("t", data)
    assert list(route.writable) == sorted(set(route.writable))
    assert list(route.readable) == sorted(set(route.readable))
    for name, (write, read, perm) in queues.items():
        writes = [queue for queue in route.writable if queue.broker_name == name]
        reads = [queue for queue in route.readable if queue.broker_name == name]
        may_write = perm & PERM_WRITE and 0 in brokers.get(name, ())
        assert len(writes) == (write if may_write else 0)
        assert len(reads) == (read if perm & PERM_READ else 0)


@given(st.lists(st.integers(1, 100)), st.integers(1, 200), st.integers(1, 10))
def test_batches_are_split_by_limits(sizes: list[int], batch_bytes: int, batch_count: int) -> None:
    stretches = split(sizes, batch_bytes, batch_count)
    assert [at for stretch in stretches for at in stretch] == list(range(len(sizes)))
    for stretch in stretches:
        assert 1 <= len(stretch) <= batch_count
        assert len(stretch) == 1 or sum(sizes[at] for at in stretch) <= batch_bytes
    # The first message of the next batch would not have fitted.
    for one, other in itertools.pairwise(stretches):
        first = sizes[other.start]
        assert len(one) == batch_count or sum(sizes[at] for at in one) + first > batch_bytes


@given(
    st.binary(min_size=1, max_size=50),
    st.text(st.characters(exclude_characters="\x01\x02 ", exclude_categories=["Cs"]), max_size=9),
    st.booleans(),
)
def test_batch_items_read_back(body: bytes, key: str, wait_stored: bool) -> None:
    message = Message("t", body, keys=key, wait_stored=wait_stored)
    (item,) = batch.decode(batch_item(message, "ID"))
    carried = properties.decode(item.properties_text)
    assert item.body == body
    assert carried.get(properties.KEYS, "") == key
    assert carried[properties.UNIQUE_KEY] == "ID"
    assert carried[properties.WAIT_STORED] == ("true" if wait_stored else "false")


@given(st.text() | st.integers(-(2**63), 2**63 - 1), QUEUES)
def test_key_always_selects_the_same_queue(key: str | int, queues: list[Queue]) -> None:
    message = Message("t", b"x")
    assert by_hash(key)(queues, message) == by_hash(key)(tuple(queues), message)
