"""The message classes of the client."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from threading import Thread
from typing import Any

import msgspec
import pydantic
import pytest

from tianzhou.client.message import Message, ReceivedMessage, ms_of, time_of
from tianzhou.errors import BodyError, MessageRefused
from tianzhou.message import StoredMessage
from tianzhou.protocol import properties
from tianzhou.protocol.records.compression import CompressionType, compress, flag_of

WHEN = datetime(2026, 11, 16, 12, 0, 0, 5_000, tzinfo=UTC)


def stored(**changes: Any) -> StoredMessage:  # noqa: ANN401 - fields of StoredMessage
    base = StoredMessage(
        topic="orders", body=b'{"id": 7}', properties={}, queue_id=2, queue_offset=9, log_offset=77,
        flag=3, sys_flag=0, born_time_ms=ms_of(WHEN), born_host=("10.0.0.1", 5),
        store_time_ms=1_500, store_host=("10.0.0.2", 10911), reconsume_count=1,
        prepared_log_offset=0, body_crc=0,
        size_bytes=120,
    )  # fmt: skip
    return msgspec.structs.replace(base, **changes)


# -- to send ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", [b"caf\xc3\xa9", "café", bytearray(b"caf\xc3\xa9"), memoryview(b"caf\xc3\xa9")]
)
def test_bodies(body: bytes | str) -> None:
    assert Message("t", body).payload == b"caf\xc3\xa9"


def test_body_of_a_wrong_kind() -> None:
    wrong: Any = {"id": 7}
    with pytest.raises(MessageRefused, match=r"Message\.json"):
        Message("t", wrong)


@dataclass
class Order:
    id: int


class OrderStruct(msgspec.Struct):
    id: int


class OrderModel(pydantic.BaseModel):
    id: int


class OrderLine(pydantic.BaseModel):
    """A model whose names in JSON are others, with values that JSON has no form for."""

    part: OrderModel
    unit_price: Decimal = pydantic.Field(alias="unitPrice", gt=0)
    due: datetime


@pytest.mark.parametrize("value", [{"id": 7}, Order(7), OrderStruct(7), OrderModel(id=7)])
def test_json_bodies(value: object) -> None:
    message = Message.json("t", value, keys="7")
    received = ReceivedMessage(stored(body=message.payload))
    assert received.json() == {"id": 7}
    assert received.as_(Order) == Order(7)
    assert received.as_(OrderStruct) == OrderStruct(7)
    assert received.as_(OrderModel) == OrderModel(id=7)


def test_pydantic_bodies() -> None:
    line = OrderLine(part=OrderModel(id=7), unitPrice=Decimal("1.50"), due=WHEN)
    one = ReceivedMessage(stored(body=Message.json("t", line).payload))
    assert one.json() == {
        "part": {"id": 7}, "unitPrice": "1.50", "due": "2026-11-16T12:00:00.005000Z"
    }  # fmt: skip
    assert one.as_(OrderLine) == line
    several = ReceivedMessage(stored(body=Message.json("t", {"lines": [line, line]}).payload))
    assert several.as_(dict[str, list[OrderLine]]) == {"lines": [line, line]}
    root = pydantic.RootModel[list[OrderLine]]([line])
    assert ReceivedMessage(stored(body=Message.json("t", root).payload)).as_(list[OrderLine]) == [
        line
    ]


@pytest.mark.parametrize("kind", [OrderLine, list[OrderLine]])
def test_pydantic_says_what_is_wrong(kind: type) -> None:
    wrong = b'{"part": {"id": 7}, "unitPrice": -1, "due": "2026-11-16T12:00:00Z"}'
    body = wrong if kind is OrderLine else b"[" + wrong + b"]"
    with pytest.raises(BodyError, match=r"orders(.|\n)*unitPrice(.|\n)*greater than 0"):
        ReceivedMessage(stored(body=body)).as_(kind)


def test_values_without_json_form() -> None:
    with pytest.raises(MessageRefused, match="object"):
        Message.json("t", object())


def test_wire_properties() -> None:
    message = Message(
        "t", b"x", tags="a", keys=["k1", "k2"], properties={"p": "q"}, shard="s", wait_stored=False
    )
    assert message.wire_properties("ns") == {
        "p": "q", "TAGS": "a", "KEYS": "k1 k2", "__SHARDINGKEY": "s", "WAIT": "false",
        "INSTANCE_ID": "ns",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("message", "name", "value"),
    [
        (Message("t", b"x", delay_level=3), properties.DELAY_LEVEL, "3"),
        (Message("t", b"x", delay=1.5), properties.TIMER_DELAY_MS, "1500"),
        (Message("t", b"x", delay=timedelta(minutes=1)), properties.TIMER_DELAY_MS, "60000"),
        (Message("t", b"x", deliver_at=WHEN), properties.TIMER_DELIVER_MS, str(ms_of(WHEN))),
    ],
)
def test_delays(message: Message, name: str, value: str) -> None:
    assert message.is_delayed
    assert message.wire_properties()[name] == value


@pytest.mark.parametrize(
    "options",
    [
        {"delay_level": 1, "delay": 2}, {"delay": 1, "deliver_at": WHEN}, {"delay_level": -1},
        {"delay": -1}, {"delay": timedelta(seconds=-1)},
        {"deliver_at": datetime(2026, 1, 1)},  # noqa: DTZ001 - that is the point
    ],
)  # fmt: skip
def test_invalid_delays(options: dict[str, Any]) -> None:
    with pytest.raises(MessageRefused):
        Message("t", b"x", **options)


def test_reserved_properties() -> None:
    with pytest.raises(MessageRefused, match="KEYS is reserved"):
        Message("t", b"x", properties={"KEYS": "k"}).wire_properties()


# -- received --------------------------------------------------------------------------------------


def test_plain() -> None:
    message = ReceivedMessage(stored(), broker_name="a")
    assert (message.topic, message.text, message.flag) == ("orders", '{"id": 7}', 3)
    assert (message.keys, message.key, message.tags, message.shard) == ((), None, None, None)
    assert message.queue == ("orders", "a", 2)
    assert (message.queue_id, message.queue_offset, message.reconsume_times) == (2, 9, 1)
    assert message.born_time == WHEN
    assert message.store_time == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    assert (message.born_host, message.store_host) == (("10.0.0.1", 5), ("10.0.0.2", 10911))
    assert message.msg_id == message.offset_msg_id == "0A00000200002A9F000000000000004D"
    assert message.size_bytes == 120
    assert "orders" in repr(message)


def test_unique_id_and_keys() -> None:
    message = ReceivedMessage(
        stored(
            properties={"UNIQ_KEY": "U", "KEYS": "k1  k2", "TAGS": "t", "__transactionId__": "T"}
        )
    )
    assert (message.msg_id, message.keys, message.key) == ("U", ("k1", "k2"), "k1")
    assert (message.tags, message.transaction_id) == ("t", "T")


def test_topic_of_a_redelivery_and_of_a_namespace() -> None:
    again = stored(topic="%RETRY%ns%g", properties={"RETRY_TOPIC": "ns%orders"})
    assert ReceivedMessage(again, namespace="ns").topic == "orders"
    assert ReceivedMessage(again).topic == "ns%orders"
    assert ReceivedMessage(stored(topic="other%orders"), namespace="ns").topic == "other%orders"


def test_decompressed_once_and_only_up_to_the_limit() -> None:
    packed = stored(
        body=compress(b"x" * 5_000, CompressionType.LZ4), sys_flag=flag_of(CompressionType.LZ4)
    )
    message = ReceivedMessage(packed)
    assert message.body == b"x" * 5_000
    assert message.body is message.body
    with pytest.raises(BodyError):
        _ = ReceivedMessage(packed, unpacked_bytes_max=4_999).body


def test_bodies_of_other_types() -> None:
    with pytest.raises(BodyError, match="orders"):
        _ = ReceivedMessage(stored(body=b"\xff")).text
    with pytest.raises(BodyError, match="orders"):
        ReceivedMessage(stored(body=b"{")).json()
    with pytest.raises(BodyError, match="id"):
        ReceivedMessage(stored(body=b'{"id": "x"}')).as_(Order)
    with pytest.raises(BodyError, match="Thread"):
        ReceivedMessage(stored()).as_(Thread)


def test_times() -> None:
    assert ms_of(time_of(1_234_567)) == 1_234_567
