"""Small parts of the client: names, ids, selectors, requests, trace entries."""

import os
import subprocess
import sys
from datetime import datetime
from typing import Any

import msgspec
import pytest
from tests.support.unique_ids import decode_unique_id
from tests.unit.client.test_message import stored

from tianzhou.client import namespaces
from tianzhou.client.identity import UniqueIds, local_address
from tianzhou.client.message import Message, ReceivedMessage
from tianzhou.client.observe import trace
from tianzhou.client.observe.trace import ConsumeReturn, TracedKind, TraceEntry
from tianzhou.client.producer import request_reply
from tianzhou.client.producer.selectors import at_random, by_hash, by_machine_room, by_shard
from tianzhou.client.queues import Queue
from tianzhou.client.sending.send_request import SendResult, SendStatus
from tianzhou.clock import wall_ms
from tianzhou.errors import FieldError, MessageRefused, RouteNotFound
from tianzhou.names import reply_topic
from tianzhou.protocol import headers, sysflag
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.send import EndTransactionRequest, PushReplyMessageRequest
from tianzhou.protocol.records.message_id import span_ms

MESSAGE = Message("t", b"x")
QUEUES = [Queue("t", "room1@a", 0), Queue("t", "room1@a", 1), Queue("t", "room2@b", 0)]


# -- namespaces ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plain", "wrapped"),
    [
        ("orders", "ns%orders"),
        ("%RETRY%g", "%RETRY%ns%g"),
        ("%DLQ%g", "%DLQ%ns%g"),
        ("ns%orders", "ns%orders"),
        ("rmq_sys_X", "rmq_sys_X"),
        ("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
        ("CID_RMQ_SYS_X", "CID_RMQ_SYS_X"),
        ("", ""),
    ],
)
def test_wrap(plain: str, wrapped: str) -> None:
    assert namespaces.wrap("ns", plain) == wrapped
    assert namespaces.wrap("", plain) == plain


def test_strip() -> None:
    assert namespaces.strip("ns", "ns%orders") == "orders"
    assert namespaces.strip("ns", "%RETRY%ns%g") == "%RETRY%g"
    assert namespaces.strip("ns", "other%orders") == "other%orders"
    assert namespaces.strip("", "ns%orders") == "ns%orders"


# -- ids -------------------------------------------------------------------------------------------


def test_unique_ids() -> None:
    ids = UniqueIds()
    made = [ids.next() for _ in range(1_000)]
    assert len(set(made)) == 1_000
    together = ids.next_many(1_000)
    assert len(set(made + together)) == 2_000
    assert len(set(ids.next_many(200_000))) == 200_000
    assert ids.next_many(0) == []
    parts = decode_unique_id(made[0])
    assert (parts.address, parts.pid) == (local_address(), os.getpid() & 0xFFFF)
    # The month begins in local time. It may end between the two readings of the clock.
    zone = datetime.now().astimezone().tzinfo
    assert zone is not None
    assert span_ms(wall_ms(), zone) - parts.span_ms < 3_600_000
    ids.renew()
    assert decode_unique_id(ids.next()).process_hash != parts.process_hash


# -- selectors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "java_hash"),
    [
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("", 0),
        (-7, -7),
        (2**31, -2147483648),
        (2**32 + 5, 4),
    ],
)
def test_by_hash(key: str | int, java_hash: int) -> None:
    for count in (1, 2, 3):
        expected = QUEUES[:count][abs(java_hash) % count]
        assert by_hash(key)(QUEUES[:count], MESSAGE) == expected


def test_other_selectors() -> None:
    assert at_random(QUEUES, MESSAGE) in QUEUES
    assert by_machine_room({"room2"})(QUEUES, MESSAGE) == QUEUES[2]
    with pytest.raises(RouteNotFound, match="room3"):
        by_machine_room({"room3"})(QUEUES, MESSAGE)
    with pytest.raises(MessageRefused, match="shard"):
        by_shard(QUEUES, MESSAGE)
    assert by_shard(QUEUES, Message("t", b"x", shard="s")) == by_hash("s")(QUEUES, MESSAGE)


# -- requests --------------------------------------------------------------------------------------


def question(**props: str) -> ReceivedMessage:
    return ReceivedMessage(stored(properties=props))


def test_reply_to_a_request() -> None:
    asked = request_reply.request_properties("C", "me@1", 3_000)
    received = question(CLUSTER="DefaultCluster", **asked)
    assert reply_topic(received.properties["CLUSTER"]) == "DefaultCluster_REPLY_TOPIC"
    assert request_reply.reply_properties(received) == {**asked, "MSG_TYPE": "reply"}


@pytest.mark.parametrize("missing", ["CORRELATION_ID", "REPLY_TO_CLIENT", "CLUSTER"])
def test_no_request(missing: str) -> None:
    props = {"CORRELATION_ID": "C", "REPLY_TO_CLIENT": "me", "CLUSTER": "c"}
    del props[missing]
    with pytest.raises(MessageRefused, match=missing):
        request_reply.reply_properties(question(**props))


def test_pushed_reply() -> None:
    header = PushReplyMessageRequest(
        producer_group="g", topic="c_REPLY_TOPIC", default_topic="TBW102",
        default_topic_queue_count=4, queue_id=1, sys_flag=0, born_timestamp=5, flag=2,
        properties="CORRELATION_ID\x01C\x02", born_host="/127.0.0.1:80", store_host="nonsense",
        store_timestamp=6,
    )  # fmt: skip
    pushed = Command(code=326, ext_fields=headers.encode(header), body=b"yes")
    reply = request_reply.reply_from(pushed, 100, 77)
    assert (reply.body, reply.flag, reply.born_host) == (b"yes", 2, ("127.0.0.1", 80))
    assert reply.properties == {"CORRELATION_ID": "C", "ARRIVE_TIME": "77"}
    with pytest.raises(FieldError):
        request_reply.reply_from(Command(code=326, ext_fields={}), 100, 77)


# -- trace -----------------------------------------------------------------------------------------


def result(**changes: Any) -> SendResult:  # noqa: ANN401 - fields of SendResult
    base = SendResult(SendStatus.SEND_OK, "ID", "OFF", Queue("t", "a", 0), 5)
    return msgspec.structs.replace(base, **changes)


def test_entries_as_java_writes_them() -> None:
    sent = trace.published(
        Message("t", b"12345", keys=("k1", "k2")), result(), group="g", store_host="h:1",
        began_ms=10, cost_ms=3, kind=TracedKind.DELAYED,
    )  # fmt: skip
    assert sent.text == (
        "Pub\x0110\x01DefaultRegion\x01g\x01t\x01ID\x01null\x01k1 k2\x01h:1\x015\x013\x013\x01OFF"
        "\x01true\x02"
    )
    assert sent.keys == ("ID", "k1", "k2")
    end = EndTransactionRequest(
        topic="t", producer_group="g", queue_offset=0, log_offset=0,
        commit_or_rollback=sysflag.TRANSACTION_COMMIT, from_transaction_check=True, msg_id="ID",
        transaction_id="T",
    )  # fmt: skip
    ended = trace.transaction_ended(end, "g", "t", "a", (), "h:1", now_ms=10)
    assert ended.text == (
        "EndTransaction\x0110\x01DefaultRegion\x01g\x01t\x01ID\x01a\x01null\x01h:1\x012\x01T"
        "\x01COMMIT_MESSAGE\x01true\x02"
    )
    gone = trace.recalled(group="g", topic="t", msg_id="ID", now_ms=10)
    assert gone.text == "Recall\x0110\x01DefaultRegion\x01g\x01t\x01ID\x01true\x02"


def test_entries_of_a_consumer() -> None:
    messages = [
        question(UNIQ_KEY="A", KEYS="k", MSG_REGION="R"),
        question(UNIQ_KEY="B", TRACE_ON="false"),
    ]
    (before,) = trace.consuming(messages, group="g", request_id="Q", now_ms=10)
    assert before == TraceEntry("SubBefore\x0110\x01R\x01g\x01Q\x01A\x011\x01k\x02", ("A", "k"))
    (after,) = trace.consumed(
        messages, group="g", request_id="Q", cost_ms=9,
        returned=ConsumeReturn.EXCEPTION, now_ms=11,
    )  # fmt: skip
    assert after.text == "SubAfter\x01Q\x01A\x014\x01false\x01k\x012\x0111\x01g\x02"


def test_trace_entries_are_combined() -> None:
    entries = [TraceEntry(f"{number}\x02", (f"k{number}",)) for number in range(45)]
    messages = trace.trace_messages("T", entries)
    assert [message.payload.count(b"\x02") for message in messages] == [20, 20, 5]
    assert messages[2].keys == tuple(f"k{number}" for number in range(40, 45))
    large = [TraceEntry("x" * 100_000, ("k",)), TraceEntry("y" * 100_000, ("k",))]
    assert len(trace.trace_messages("T", large)) == 2


# -- other systems ---------------------------------------------------------------------------------

WITHOUT_UNIX = """
import asyncio, os, sys
for name in ("fcntl", "uvloop", "resource", "pwd", "grp", "termios", "tianzhou_kernel"):
    sys.modules[name] = None
for name in ("fork", "register_at_fork"):
    delattr(os, name)
import tianzhou.client, tianzhou.client.sync
from tianzhou.client.database import idempotence, outbox, sql
"""


def test_imports_no_unix_modules() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_UNIX], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
