"""Statistics: a window is the sum of its steps, independent of when it is read."""

from hypothesis import given
from hypothesis import strategies as st

from tianzhou.broker.statistics.counters import Stats
from tianzhou.broker.statistics.history import History
from tianzhou.broker.statistics.series import WINDOWS, Amount, Series, steps_at

START_MS = 1_800_000_000_000

EVENTS = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 30_000), st.integers(0, 2_000_000), st.integers(0, 40_000_000)),
        st.integers(1, 50),
    ),
    max_size=60,
)
"""How long after the one before, and how many messages."""


@given(events=EVENTS, look_after_ms=st.integers(0, 4_000_000))
def test_a_window_is_the_sum_of_its_steps(
    events: list[tuple[int, int]], look_after_ms: int
) -> None:
    series, now_ms, happened = Series(START_MS), START_MS, list[tuple[int, int]]()
    for after_ms, messages in events:
        now_ms += after_ms
        series.add(Amount(messages, 2 * messages, 1), steps_at(now_ms))
        happened.append((now_ms, messages))
    now_ms += look_after_ms
    for window in WINDOWS:
        first_ms = (now_ms // window.step_ms - window.step_count + 1) * window.step_ms
        recent = [messages for at_ms, messages in happened if at_ms >= first_ms]
        figures = series.over(window, 0, now_ms)
        assert figures.sum == sum(recent)
        assert figures.per_call == (sum(recent) / len(recent) if recent else 0)
        assert series.over(window, 1, now_ms).sum == 2 * sum(recent)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(("put", "get", "tick", "collect", "forget_topic", "forget_group")),
        st.sampled_from(("a", "b", "SCHEDULE_TOPIC_XXXX")),
        st.integers(0, 2),
    ),
    max_size=80,
)


@given(actions=ACTIONS)
def test_totals_count_every_message_once(actions: list[tuple[str, str, int]]) -> None:
    stats = Stats(started_ms=START_MS)
    history = History(stats, START_MS, cluster="C")
    put = got = 0
    now_ms = START_MS
    for action, topic, queue_id in actions:
        now_ms += 700
        is_counted = not topic.startswith("SCHEDULE")
        if action == "put":
            stats.stored(topic, 3, 30, 0, queue_id=queue_id)
            put += 3 * is_counted
        elif action == "get":
            stats.delivered(topic, "g", 2, 20, queue_id=queue_id)
            got += 2 * is_counted
        elif action == "tick":
            history.tick(now_ms)
        elif action == "collect":
            history.collect(now_ms)
        elif action == "forget_topic":
            history.forget_topic(topic, now_ms)
        else:
            history.forget_group("g", now_ms)
    history.collect(now_ms)
    assert (history.totals.put, history.totals.got) == (put, got)
    for topic in ("a", "b"):
        counted = sum(
            counts.messages for (name, _), counts in stats.by_queue.items() if name == topic
        )
        series = history.look_up("TOPIC_PUT_NUMS", topic, now_ms)
        assert (series[WINDOWS[-1]].sum if series else 0) == counted
