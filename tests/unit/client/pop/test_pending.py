"""Popped messages: handles as in Java, batch acknowledgements, pops without a receiver."""

import asyncio
import base64
from typing import cast

import pytest
from tests.support.brokers import eventually
from tests.support.records import encode_record

from tianzhou.client.group.subscriptions import Subscription, by_tags
from tianzhou.client.pop.calls import PopCalls, PopLimits, batch_acks
from tianzhou.client.pop.messages import PoppedMessage, receipt_of, sound_records
from tianzhou.client.pop.pending import PendingPops
from tianzhou.client.queues import Queue
from tianzhou.errors import FieldError, RecordError, TianzhouError
from tianzhou.message import StoredMessage
from tianzhou.protocol.headers.pop import ChangeInvisibleTimeResponse, PopMessageResponse
from tianzhou.protocol.properties import encode as encode_properties
from tianzhou.protocol.records import receipts
from tianzhou.protocol.records.record import decode_record

HOST = ("127.0.0.1", 80)
TARGET = Queue("orders", "broker-a", -1)
ALL_TAGS = Subscription("orders")
LIMITS = PopLimits(32, 60_000)
RESPONSE = PopMessageResponse(
    pop_time_ms=1_700_000_000_000, invisible_time_ms=60_000, revive_queue_id=4, rest_count=0
)


def stored(
    queue_offset: int, *, topic: str = "orders", queue_id: int = 2, **properties: str
) -> StoredMessage:
    return decode_record(record(queue_offset, topic=topic, queue_id=queue_id, **properties))


def record(
    queue_offset: int, *, topic: str = "orders", queue_id: int = 2, **properties: str
) -> bytes:
    return encode_record(
        topic=topic, queue_id=queue_id, queue_offset=queue_offset, body=b"body",
        properties_text=encode_properties(properties), born_time_ms=1, born_host=HOST,
        store_host=HOST, store_time_ms=2,
    )  # fmt: skip


def popped(queue_offset: int, start: int = 0, queue_id: int = 2, tags: str = "") -> PoppedMessage:
    found = stored(queue_offset, queue_id=queue_id, **({"TAGS": tags} if tags else {}))
    receipt = receipt_of(found, RESPONSE, {("0", queue_id): start}, "broker-a")
    return PoppedMessage(found, receipt, "orders", "broker-a", "", 1024)


# -- handles ---------------------------------------------------------------------------------------


def test_handle_has_the_fields_of_java() -> None:
    assert popped(7, start=5).handle == "5 1700000000000 60000 4 0 broker-a 2 7"


def test_handle_marks_the_version_of_the_retry_topic() -> None:
    starts = receipts.parse_start_offsets("0 2 9;1 0 3;2 0 4")
    for topic, expected in (("%RETRY%g_orders", "3"), ("%RETRY%g+orders", "4")):
        found = stored(8, topic=topic, queue_id=0)
        fields = str(receipt_of(found, RESPONSE, starts, "broker-a")).split()
        assert (fields[0], fields[4], fields[7]) == (expected, receipts.mark_of(topic), "8")


def test_handle_in_the_properties_is_used() -> None:
    given = "3 1700000000000 60000 0 1 broker-b 0 5"
    assert str(receipt_of(stored(5, POP_CK=given), RESPONSE, {}, "broker-a")) == given


@pytest.mark.parametrize("foreign", ["3 1600000000000 60000 0 0 broker-b 0 5", "x", "1 2 3"])
def test_handle_of_another_pop_in_the_properties_is_ignored(foreign: str) -> None:
    receipt = receipt_of(stored(5, POP_CK=foreign), RESPONSE, {}, "broker-a")
    assert str(receipt) == "5 1700000000000 60000 4 0 broker-a 2 5"


def test_without_start_offsets_each_message_is_its_own_start() -> None:
    assert receipt_of(stored(5), RESPONSE, {}, "broker-a").start_offset == 5


def test_message_of_another_queue_is_rejected() -> None:
    with pytest.raises(RecordError, match="has no start offset"):
        receipt_of(stored(5), RESPONSE, {("0", 1): 5}, "broker-a")


@pytest.mark.parametrize("info", ["0 1", "0 1 x", "0 1 2;", "0 1 2 3"])
def test_invalid_start_offsets(info: str) -> None:
    with pytest.raises(FieldError):
        receipts.parse_start_offsets(info)


def test_changed_invisible_time_changes_only_the_handle_of_its_message() -> None:
    message = popped(7, start=5)
    message.renew(
        ChangeInvisibleTimeResponse(pop_time_ms=1, invisible_time_ms=2, revive_queue_id=3)
    )
    assert message.handle == "7 1 2 3 0 broker-a 2 7"


def test_damaged_records_are_separated() -> None:
    sound = record(1)
    broken = bytearray(record(2))
    broken[broken.index(b"body")] ^= 1
    good, bad = sound_records(sound + bytes(broken) + record(3))
    assert [each.queue_offset for each in good] == [1, 3]
    assert [each.queue_offset for each in bad] == [2]


def test_batch_acknowledgements_are_grouped_by_pop_and_queue() -> None:
    messages = [popped(5, 5), popped(7, 5), popped(21, 5), popped(9, 9, queue_id=0)]
    one, other = batch_acks("g", messages)
    assert (one.topic, one.queue_id, one.start_offset, one.retry) == ("orders", 2, 5, "0")
    assert (one.pop_time_ms, one.invisible_time_ms, one.revive_queue_id) == (
        RESPONSE.pop_time_ms, 60_000, 4,
    )  # fmt: skip
    assert base64.b64decode(one.bit_set or "") == bytes([0b101, 0, 1])
    assert (other.queue_id, base64.b64decode(other.bit_set or "")) == (0, b"\x01")


# -- pops that nobody waits for --------------------------------------------------------------------


class Broker:
    """Responds to a pop on request of the test, and records acknowledgements."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[list[PoppedMessage]] = asyncio.Future()
        self.given_back: list[int] = []
        self.acknowledged: list[int] = []

    async def pop(self, *_: object) -> list[PoppedMessage]:
        return await asyncio.shield(self.answer)

    async def change_invisible(self, message: PoppedMessage, invisible_ms: int) -> None:
        assert invisible_ms == 0
        self.given_back.append(message.queue_offset)

    async def ack_many(self, messages: list[PoppedMessage]) -> list[TianzhouError | None]:
        self.acknowledged += [each.queue_offset for each in messages]
        return [None] * len(messages)


def popping_at(broker: Broker) -> PendingPops:
    return PendingPops(cast("PopCalls", broker), "g")


async def test_messages_of_a_cancelled_receiver_are_released() -> None:
    broker = Broker()
    pending = popping_at(broker)
    receiver = asyncio.create_task(pending.pop(TARGET, ALL_TAGS, LIMITS))
    await asyncio.sleep(0)
    receiver.cancel()
    assert isinstance(
        (await asyncio.gather(receiver, return_exceptions=True))[0], asyncio.CancelledError
    )
    broker.answer.set_result([popped(1), popped(2)])
    await pending.close()
    assert broker.given_back == [1, 2]


async def test_response_in_the_iteration_of_the_cancellation_is_released() -> None:
    broker = Broker()
    pending = popping_at(broker)
    receiver = asyncio.create_task(pending.pop(TARGET, ALL_TAGS, LIMITS))
    await asyncio.sleep(0)
    broker.answer.set_result([popped(1)])
    pop = next(task for task in asyncio.all_tasks() if task.get_name() == "pop g orders")
    pop.add_done_callback(lambda _: receiver.cancel())
    await asyncio.gather(receiver, return_exceptions=True)
    await pending.close()
    assert receiver.cancelled()
    assert broker.given_back == [1]


async def test_messages_that_arrive_during_close_are_released() -> None:
    broker = Broker()
    pending = popping_at(broker)
    receiver = asyncio.create_task(pending.pop(TARGET, ALL_TAGS, LIMITS))
    await asyncio.sleep(0)
    closing = asyncio.create_task(pending.close())
    await asyncio.sleep(0)
    broker.answer.set_result([popped(1)])
    await closing
    assert await receiver == []
    assert broker.given_back == [1]


async def test_failed_pop_without_receiver_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    broker = Broker()
    pending = popping_at(broker)
    receiver = asyncio.create_task(pending.pop(TARGET, ALL_TAGS, LIMITS))
    await asyncio.sleep(0)
    receiver.cancel()
    await asyncio.gather(receiver, return_exceptions=True)
    broker.answer.set_exception(TianzhouError("no"))
    await pending.close()
    await eventually(lambda: "without a receiver failed: no" in caplog.text, "a line in the log")


async def test_messages_of_another_tag_with_the_same_hash_are_acknowledged() -> None:
    broker = Broker()
    pending = popping_at(broker)
    broker.answer.set_result([popped(1, tags="Aa"), popped(2, tags="BB")])
    found = await pending.pop(TARGET, by_tags("orders", "Aa", 0), LIMITS)
    await pending.close()
    assert [each.queue_offset for each in found] == [1]
    assert broker.acknowledged == [2]
