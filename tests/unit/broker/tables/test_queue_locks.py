"""Queue locks."""

from hypothesis import given
from hypothesis import strategies as st

from tianzhou.broker.tables.queue_locks import QueueLocks, QueueName

LIVE_MS = 60_000
ONE, TWO = QueueName("t", "b", 0), QueueName("t", "b", 1)


def test_a_queue_has_one_owner_in_a_group() -> None:
    locks = QueueLocks()
    assert locks.lock("g", "a", [ONE, TWO], 0, LIVE_MS) == [ONE, TWO]
    assert locks.lock("g", "b", [ONE, TWO], 1, LIVE_MS) == []
    assert locks.lock("other", "b", [ONE], 1, LIVE_MS) == [ONE]
    assert locks.unlock("g", "b", [ONE]) == 0
    assert locks.unlock("g", "a", [ONE, ONE]) == 1
    assert locks.lock("g", "b", [ONE, TWO], 2, LIVE_MS) == [ONE]


def test_a_lock_that_is_not_renewed_expires() -> None:
    locks = QueueLocks()
    locks.lock("g", "a", [ONE, TWO], 0, LIVE_MS)
    assert locks.lock("g", "a", [ONE], 50_000, LIVE_MS) == [ONE]
    assert locks.lock("g", "b", [ONE, TWO], LIVE_MS, LIVE_MS) == []
    assert locks.lock("g", "b", [ONE, TWO], LIVE_MS + 1, LIVE_MS) == [TWO]
    assert locks.owner("g", ONE, 110_000, LIVE_MS) == "a"
    assert locks.owner("g", ONE, 110_001, LIVE_MS) is None


def test_expired_locks_are_removed() -> None:
    locks = QueueLocks()
    locks.lock("g", "a", [ONE, TWO], 0, LIVE_MS)
    locks.lock("g", "a", [TWO], 30_000, LIVE_MS)
    assert locks.remove_expired(LIVE_MS + 1, LIVE_MS) == 1
    assert list(locks.by_group["g"]) == [TWO]
    assert locks.remove_expired(LIVE_MS + 30_001, LIVE_MS) == 1
    assert locks.by_group == {}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["lock", "unlock", "forget"]), st.sampled_from("abc"),
            st.sets(st.sampled_from([ONE, TWO])), st.integers(0, 70_000),
        )
    )
)  # fmt: skip
def test_never_two_owners(steps: list[tuple[str, str, set[QueueName], int]]) -> None:
    locks, now_ms = QueueLocks(), 0
    model: dict[QueueName, tuple[str, int]] = {}
    for verb, client, queues, passed_ms in steps:
        now_ms += passed_ms
        live = {queue: held for queue, held in model.items() if now_ms - held[1] <= LIVE_MS}
        if verb == "lock":
            expected = {queue for queue in queues if queue not in live or live[queue][0] == client}
            assert set(locks.lock("g", client, queues, now_ms, LIVE_MS)) == expected
            model = live | dict.fromkeys(expected, (client, now_ms))
        elif verb == "unlock":
            locks.unlock("g", client, queues)
            model = {q: held for q, held in model.items() if q not in queues or held[0] != client}
        else:
            locks.remove_expired(now_ms, LIVE_MS)
