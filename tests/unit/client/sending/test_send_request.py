"""Building send requests and reading their results."""

import base64

import pytest

from tianzhou.client.message import Message
from tianzhou.client.queues import Queue
from tianzhou.client.sending import send_request
from tianzhou.client.sending.send_request import SendStatus
from tianzhou.client.sending.settings import ProducerSettings
from tianzhou.errors import FieldError, MessageRefused
from tianzhou.protocol import properties
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import decode
from tianzhou.protocol.headers.send import SendMessageRequestV2
from tianzhou.protocol.records import batch
from tianzhou.protocol.records.compression import CompressionType, plain_body
from tianzhou.protocol.sysflag import TRANSACTION_PREPARED

QUEUE = Queue("t", "broker-a", 3)


@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 128, "a/b", "SCHEDULE_TOPIC_XXXX"])
def test_invalid_topics(name: str) -> None:
    with pytest.raises(MessageRefused):
        send_request.check_topic(name)


@pytest.mark.parametrize("name", ["", "a b", "x" * 256, "DEFAULT_PRODUCER"])
def test_invalid_group_names(name: str) -> None:
    with pytest.raises(MessageRefused):
        send_request.check_group(name)


def test_valid_names() -> None:
    send_request.check_topic("%RETRY%g_1-x|y")
    send_request.check_group("x" * 255)


def test_header() -> None:
    out = send_request.outgoing(
        Message("t", b"body", tags="a", flag=9), "t", "ID", ProducerSettings()
    )
    template = send_request.header_template("g", QUEUE, "TBW102", 4, unit_mode=False)
    header = decode(SendMessageRequestV2, send_request.fields_of(template, out, 123))
    assert header == SendMessageRequestV2(
        producer_group="g", topic="t", default_topic="TBW102", default_topic_queue_count=4,
        queue_id=3, sys_flag=0, born_timestamp=123, flag=9, properties=out.properties_text,
        reconsume_times=0, unit_mode=False, batch=False, broker_name="broker-a",
    )  # fmt: skip
    assert properties.decode(out.properties_text) == {"TAGS": "a", "WAIT": "true", "UNIQ_KEY": "ID"}
    assert template["g"] == "0"  # what one try fills in, the next does not see


def test_plain_message_has_the_short_text() -> None:
    plain = Message("t", b"x")
    rich = Message("t", b"x", tags="a")
    plain_text = send_request.properties_text(plain, "ID")
    assert properties.decode(plain_text) == {"UNIQ_KEY": "ID", "WAIT": "true"}
    assert plain_text.endswith("\x02")
    assert send_request.properties_text(rich, "ID").endswith("\x02")


@pytest.mark.parametrize("kind", CompressionType)
def test_large_bodies_are_compressed(kind: CompressionType) -> None:
    settings = ProducerSettings(compress_over_bytes=100, compression=kind)
    small = send_request.outgoing(Message("t", b"x" * 99), "t", "ID", settings)
    large = send_request.outgoing(Message("t", b"x" * 100), "t", "ID", settings)
    assert (small.body, small.sys_flag) == (b"x" * 99, 0)
    assert len(large.body) < 100
    assert plain_body(large.body, large.sys_flag, 100) == b"x" * 100


def test_half_messages_and_replies() -> None:
    extra = {properties.TRANSACTION_PREPARED: "true"}
    half = send_request.outgoing(Message("t", b"x"), "t", "ID", ProducerSettings(), extra=extra)
    assert half.sys_flag == TRANSACTION_PREPARED
    reply = send_request.outgoing(
        Message("t", b"x"), "t", "ID", ProducerSettings(), extra={properties.MESSAGE_TYPE: "reply"}
    )
    assert reply.code == RequestCode.SEND_REPLY_MESSAGE_V2


@pytest.mark.parametrize(
    "message",
    [
        Message("t", b""),
        Message("t", b"x" * 11),
        Message("t", b"x", tags="a\x02b"),
        Message("t", b"x", properties={"long": "v" * 40_000}),
        Message("t", b"x", properties={"UNIQ_KEY": "mine"}),
    ],
)
def test_refused(message: Message) -> None:
    with pytest.raises(MessageRefused):
        send_request.outgoing(message, "t", "ID", ProducerSettings(message_bytes_max=10))


def test_batch() -> None:
    messages = [Message("t", b"1", keys="k"), Message("t", b"2", flag=5)]
    items = [send_request.batch_item(message, f"ID{at}") for at, message in enumerate(messages)]
    out = send_request.outgoing_batch(
        "t", items, ("ID0", "ID1"), ProducerSettings(), wait_stored=True
    )
    assert out.code == RequestCode.SEND_BATCH_MESSAGE
    assert send_request.fields_of({}, out, 1)["m"] == "true"
    assert [(item.body, item.flag) for item in batch.decode(out.body)] == [(b"1", 0), (b"2", 5)]
    with pytest.raises(MessageRefused, match="batch"):
        send_request.outgoing_batch(
            "t", items, (), ProducerSettings(message_bytes_max=9), wait_stored=True
        )


def test_messages_that_cannot_be_batched() -> None:
    assert send_request.may_batch(Message("t", b"x"))
    assert not send_request.may_batch(Message("t", b"x", delay_level=1))
    assert not send_request.may_batch(Message("t", b"x", delay=0))
    assert not send_request.may_batch(Message("%RETRY%g", b"x"))


def answer(**fields: str) -> Command:
    return Command(code=ResponseCode.SUCCESS, ext_fields=fields)


def test_result() -> None:
    out = send_request.outgoing(Message("t", b"x"), "ns%t", "ID", ProducerSettings())
    got = answer(msgId="OFF", queueId="3", queueOffset="12", recallHandle="H", TRACE_ON="false")
    result = send_request.result_of(got, out, "t", "a")
    assert (result.status, result.msg_id, result.offset_msg_id) == (SendStatus.SEND_OK, "ID", "OFF")
    assert (result.queue, result.queue_offset) == (Queue("t", "a", 3), 12)
    assert (result.recall_handle, result.trace_on, result.region_id) == (
        "H",
        False,
        "DefaultRegion",
    )


def test_result_without_optional_fields() -> None:
    out = send_request.outgoing(Message("t", b"x"), "t", "ID", ProducerSettings())
    with pytest.raises(FieldError, match="queueId"):
        send_request.result_of(answer(msgId="OFF", queueId="x", queueOffset="1"), out, "t", "a")
    with pytest.raises(FieldError, match="msgId"):
        send_request.result_of(Command(code=0), out, "t", "a")


@pytest.mark.parametrize("ids", ["A,B", "A"])
def test_results_of_a_batch(ids: str) -> None:
    out = send_request.outgoing_batch(
        "t", [b"x", b"y"], ("ID0", "ID1"), ProducerSettings(), wait_stored=True
    )
    one, other = send_request.results_of(
        answer(msgId=ids, queueId="3", queueOffset="12"), out, "t", "a"
    )
    assert (one.msg_id, one.queue_offset, one.offset_msg_id) == ("ID0", 12, "A")
    assert (other.msg_id, other.queue_offset, other.offset_msg_id) == ("ID1", 13, ids[-1])


def test_recall_handle() -> None:
    handle = base64.urlsafe_b64encode(b"v1 topic broker-a 123 ID").decode()
    assert send_request.recall_broker(handle) == "broker-a"
    for wrong in ("", "###", base64.urlsafe_b64encode(b"v2 a b c d").decode(), "é"):
        with pytest.raises(MessageRefused, match="recall handle"):
            send_request.recall_broker(wrong)
