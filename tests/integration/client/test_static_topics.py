"""Static topics (5.x) are not supported by this client: sends and pulls are rejected."""

import logging

import pytest
from tests.support.brokers import eventually
from tests.support.scripted_broker import scripted_cluster

from tianzhou.client import Message, Producer, PushConsumer, QueueReader
from tianzhou.errors import MessageRefused
from tianzhou.protocol.codes import RequestCode

TOPIC = "Static"
WORDS = f"topic {TOPIC}: it is a static topic"


async def test_send_to_a_static_topic_is_rejected() -> None:
    """Also not through the template for topics that do not exist yet."""
    async with scripted_cluster() as script:
        script.static_topics = frozenset([TOPIC])
        async with Producer("g", namesrv=script.namesrv) as producer:
            for _ in range(2):
                with pytest.raises(MessageRefused, match=WORDS):
                    await producer.send(TOPIC, b"x")
            with pytest.raises(MessageRefused, match=WORDS):
                await (await producer.submit(Message(TOPIC, b"x")))
            with pytest.raises(MessageRefused, match=WORDS):
                await producer.queues(TOPIC)
    assert script.count(RequestCode.SEND_MESSAGE_V2) == 0


async def test_consumers_of_a_static_topic_get_an_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "tianzhou.client")
    async with scripted_cluster() as script:
        script.static_topics = frozenset([TOPIC])
        async with QueueReader("g", namesrv=script.namesrv) as reader:
            with pytest.raises(MessageRefused, match=WORDS):
                await reader.queues(TOPIC)
        consumer = PushConsumer("g", namesrv=script.namesrv)
        consumer.subscribe(TOPIC, lambda _: None)
        async with consumer:
            await eventually(lambda: WORDS in caplog.text, "a complaint")
            assert not [queue for queue in consumer.assignment if queue.topic == TOPIC]
