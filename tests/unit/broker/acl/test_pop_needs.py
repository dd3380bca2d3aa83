"""Permission to pop a topic includes acknowledging its retries, and nothing else."""

import pytest
from tests.unit.broker.acl.attacks import request as signed

from tianzhou.broker.acl.needs import SUB, group_need, needs_of, topic_need
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.scheduler import at_once


@pytest.mark.parametrize(
    "code", [RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME]
)
@pytest.mark.parametrize("topic", ["t", "%RETRY%g_t", "%RETRY%g+t"])
def test_handles_need_the_topic_and_the_group(code: int, topic: str) -> None:
    request = signed(code, consumerGroup="g", topic=topic)
    assert at_once(needs_of(request, lambda _: None)) == [topic_need("t", SUB), group_need("g")]


def test_the_retry_topic_of_another_group_needs_that_group() -> None:
    request = signed(RequestCode.ACK_MESSAGE, consumerGroup="g", topic="%RETRY%h_t")
    assert at_once(needs_of(request, lambda _: None)) == [
        topic_need("%RETRY%h_t", SUB),
        group_need("g"),
    ]


def test_modes_are_for_administrators() -> None:
    request = Command(code=RequestCode.SET_MESSAGE_REQUEST_MODE)
    assert at_once(needs_of(request, lambda _: None)) is None
