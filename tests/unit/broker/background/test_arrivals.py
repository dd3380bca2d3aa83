"""Subscribers are notified of their messages on the event loop."""

import asyncio

from tianzhou.broker.background.arrivals import Arrivals


async def test_subscribers_learn_of_all_topics_or_of_theirs() -> None:
    arrivals = Arrivals()
    of_all: list[tuple[str, int, int]] = []
    of_one: list[tuple[str, int, int]] = []
    arrivals.notify("early", 0, 0, 0, 0)
    arrivals.subscribe(lambda topic, queue_id, code: of_all.append((topic, queue_id, code)))
    arrivals.subscribe_topics(
        ["a"], lambda topic, queue_id, code: of_one.append((topic, queue_id, code))
    )
    arrivals.notify("a", 1, 20, 300, 4000)
    arrivals.notify("b", 2, 0, 0, 0)
    assert of_all == [("a", 1, 300), ("b", 2, 0)]
    assert of_one == [("a", 1, 300)]


async def test_a_message_of_another_thread_is_notified_on_the_loop() -> None:
    arrivals, topics, loops = Arrivals(), list[str](), list[asyncio.AbstractEventLoop]()

    def on_arrival(topic: str, _: int, __: int) -> None:
        topics.append(topic)
        loops.append(asyncio.get_running_loop())

    arrivals.subscribe(on_arrival)
    await asyncio.to_thread(arrivals.notify_from_thread, "a", 0, 0, 0, 0)
    await asyncio.sleep(0)
    assert topics == ["a"]
    assert loops == [asyncio.get_running_loop()]
