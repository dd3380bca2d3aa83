"""Properties that only a broker sets: none that a client sends reaches the log."""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.brokers import Peer, peer_of, running_broker, send_fields
from tests.support.pop import GROUP, TOPIC, ack, pop

from tianzhou.broker.server import Broker
from tianzhou.protocol import properties
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.properties import BROKER_ONLY, STAMPED
from tianzhou.protocol.records.batch import BatchItem
from tianzhou.protocol.records.batch import encode as encode_batch
from tianzhou.protocol.sysflag import TRANSACTION_PREPARED
from tianzhou.store.config import StoreConfig
from tianzhou.store.message_store import Draft, MessageStore

FORGED = "forged-by-a-client"
OWN = {"UNIQ_KEY": "0A", "TAGS": "a", "KEYS": "k1 k2", "colour": "green", "WAIT": "true"}
FOREIGN_HANDLE = "7 1700000000000 60000 3 0 broker-z 2 9"


@asynccontextmanager
async def scene(store: Path) -> AsyncGenerator[tuple[Broker, Peer]]:
    async with running_broker(store) as broker, peer_of(broker.address) as peer:
        # Handlers store the first message of a queue, the kernel the following ones.
        for queue_id in range(4):
            await peer.send(TOPIC, b"first", queue_id=queue_id)
        yield broker, peer


def log_of(store: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((store / "commitlog").iterdir()))


def forged_in_log(store: Path) -> list[bytes]:
    """Forged properties in the log: the end of each name."""
    parts = log_of(store).split(FORGED.encode())
    return [part[-40:] for part in parts[:-1]]


def long_form(topic: str, text: str, sys_flag: int = 0) -> dict[str, str]:
    return {
        "producerGroup": "producers", "topic": topic, "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": str(sys_flag),
        "bornTimestamp": "1", "flag": "0", "properties": text, "reconsumeTimes": "0",
        "unitMode": "false", "batch": "false", "maxReconsumeTimes": "16",
    }  # fmt: skip


Way = Callable[[Peer, str], Awaitable[Command]]


async def single(peer: Peer, text: str) -> Command:
    return await peer.ask(RequestCode.SEND_MESSAGE, long_form(TOPIC, text), b"body")


async def single_v2(peer: Peer, text: str) -> Command:
    return await peer.send(TOPIC, b"body", properties_text=text)


async def in_a_batch(peer: Peer, text: str) -> Command:
    body = encode_batch([BatchItem(b"one", text), BatchItem(b"two", "TAGS\x01a\x02")])
    fields = send_fields(TOPIC, batch=True)
    return await peer.ask(RequestCode.SEND_BATCH_MESSAGE, fields, body)


async def around_a_batch(peer: Peer, text: str) -> Command:
    body = encode_batch([BatchItem(b"one", "TAGS\x01a\x02")])
    fields = send_fields(TOPIC, batch=True, properties_text=text)
    return await peer.ask(RequestCode.SEND_BATCH_MESSAGE, fields, body)


async def as_a_reply(peer: Peer, text: str) -> Command:
    fields = send_fields("DefaultCluster_REPLY_TOPIC", properties_text=text)
    return await peer.ask(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"body")


async def as_a_half(peer: Peer, text: str) -> Command:
    closed = text if text.endswith("\x02") or not text else f"{text}\x02"
    text = f"{closed}TRAN_MSG\x01true\x02PGROUP\x01producers\x02"
    sent = await peer.send(TOPIC, b"body", properties_text=text, sys_flag=TRANSACTION_PREPARED)
    assert sent.code == ResponseCode.SUCCESS, sent.remark
    fields = {
        "producerGroup": "producers", "tranStateTableOffset": sent.fields["queueOffset"],
        "commitLogOffset": str(int(sent.fields["msgId"][16:], 16)), "commitOrRollback": "8",
        "fromTransactionCheck": "false", "msgId": "0A", "transactionId": "0A",
    }  # fmt: skip
    return await peer.ask(RequestCode.END_TRANSACTION, fields)


async def delayed(peer: Peer, text: str) -> Command:
    closed = text if text.endswith("\x02") or not text else f"{text}\x02"
    return await peer.send(TOPIC, b"body", properties_text=f"{closed}DELAY\x0118\x02")


async def timed(peer: Peer, text: str) -> Command:
    closed = text if text.endswith("\x02") or not text else f"{text}\x02"
    return await peer.send(TOPIC, b"body", properties_text=f"{closed}TIMER_DELAY_SEC\x013600\x02")


async def to_the_retry_topic(peer: Peer, text: str) -> Command:
    fields = send_fields(f"%RETRY%{GROUP}") | {"i": text}
    return await peer.ask(RequestCode.SEND_MESSAGE_V2, fields, b"body")


async def sent_back(peer: Peer, text: str) -> Command:
    sent = await peer.send(TOPIC, b"body", properties_text=text)
    fields = {
        "offset": str(int(sent.fields["msgId"][16:], 16)), "group": GROUP, "delayLevel": "0",
        "originMsgId": "0A", "originTopic": TOPIC, "unitMode": "false", "maxReconsumeTimes": "16",
    }  # fmt: skip
    return await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)


WAYS: tuple[Way, ...] = (
    single, single_v2, in_a_batch, around_a_batch, as_a_reply, as_a_half, delayed, timed,
    to_the_retry_topic, sent_back,
)  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
async def test_every_kind_of_send_drops_broker_properties(tmp_path: Path, way: Way) -> None:
    async with scene(tmp_path) as (_, peer):
        for name in sorted(BROKER_ONLY | STAMPED):
            answer = await way(peer, properties.encode(OWN | {name: FORGED}))
            if way is not as_a_reply:
                assert answer.code == ResponseCode.SUCCESS, (name, answer.remark)
            assert forged_in_log(tmp_path) == [], name
        if way is not around_a_batch:
            assert b"green" in log_of(tmp_path), "other properties stay"


forged_texts = st.lists(
    st.tuples(st.sampled_from(sorted(BROKER_ONLY | STAMPED | set(OWN))), st.just(FORGED))
    | st.sampled_from(sorted(OWN.items()))
    | st.sampled_from([("", "nameless"), ("POP_CK", "")]),
    max_size=8,
)


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(st.sampled_from((single, single_v2, in_a_batch)), forged_texts, st.booleans()),
        min_size=20,
        max_size=60,
    )
)
def test_every_property_text_drops_broker_properties(
    tmp_path_factory: pytest.TempPathFactory,
    sends: list[tuple[Way, list[tuple[str, str]], bool]],
) -> None:
    """Any order, twice or more, with empty names and values, with and without the last separator.

    Names that clients may send have values that they may send.
    """
    store = tmp_path_factory.mktemp("store")

    async def run() -> None:
        async with scene(store) as (_, peer):
            for way, pairs, closed in sends:
                parts = [
                    f"{name}\x01{OWN.get(name, value)}" for name, value in pairs
                ]  # raw, not normalized by our encoder
                text = "\x02".join(parts) + ("\x02" if closed and parts else "")
                await way(peer, text)

    asyncio.run(run())
    assert forged_in_log(store) == []
    shutil.rmtree(store)


async def test_forwarded_message_that_was_popped_elsewhere_is_popped_and_acknowledged(
    tmp_path: Path,
) -> None:
    forwarded = OWN | {"POP_CK": FOREIGN_HANDLE, "1ST_POP_TIME": "1700000000000"}
    async with scene(tmp_path / "broker") as (broker, peer):
        for body in (b"a", b"b"):
            answer = await peer.send(TOPIC, body, queue_id=0, props=forwarded)
            assert answer.code == ResponseCode.SUCCESS
        popped = await pop(peer, queue_id=0)
        assert [each.body for each in popped] == [b"first", b"a", b"b"]
        for each in popped:
            assert "POP_CK" not in each.message.properties
            assert (await ack(peer, each)).code == ResponseCode.SUCCESS
        assert broker.offsets.find(GROUP, TOPIC, 0) == 3


async def test_stored_receipt_handle_is_not_delivered(tmp_path: Path) -> None:
    """Earlier versions stored it."""
    async with scene(tmp_path):
        pass
    draft = Draft(
        TOPIC, 0, b"old", properties.encode(OWN | {"POP_CK": FOREIGN_HANDLE}), 1,
        ("127.0.0.1", 1), ("127.0.0.1", 2),
    )  # fmt: skip
    config = StoreConfig(
        store_path_root_dir=tmp_path, mapped_file_size_commit_log=4 * 1024 * 1024,
        mapped_file_size_consume_queue=20 * 2000, max_hash_slot_num=1000, max_index_num=4000,
    )  # fmt: skip
    with MessageStore.open(config) as store:
        store.append(draft)
    async with running_broker(tmp_path) as broker, peer_of(broker.address) as peer:
        plain = await peer.send(TOPIC, b"says POP_CK\x01 in its body", queue_id=0, props=OWN)
        assert plain.code == ResponseCode.SUCCESS
        first, old, other = await pop(peer, queue_id=0)
        assert (first.body, old.body, other.body[:4]) == (b"first", b"old", b"says")
        assert old.message.properties == OWN
        assert (await ack(peer, old)).code == ResponseCode.SUCCESS


async def test_retry_topic_property_is_stored_only_in_retry_topics(tmp_path: Path) -> None:
    async with scene(tmp_path) as (_, peer):
        await peer.send(TOPIC, b"x", props=OWN | {"RETRY_TOPIC": FORGED})
        assert forged_in_log(tmp_path) == []
        await peer.send(f"%RETRY%{GROUP}", b"x", props={"RETRY_TOPIC": FORGED})
        assert len(forged_in_log(tmp_path)) == 1


async def test_forwarded_message_is_not_delayed_again(
    tmp_path: Path,
) -> None:
    waited = {"TIMER_DELAY_SEC": "3600", "TIMER_OUT_MS": "1700000000000", "TIMER_ROLL_TIMES": "1"}
    async with scene(tmp_path) as (_, peer):
        answer = await peer.send(TOPIC, b"again", props=OWN | waited)
        assert answer.code == ResponseCode.SUCCESS
        popped = await pop(peer, queue_id=0)
        assert [each.body for each in popped] == [b"first", b"again"]
        assert not set(waited) & set(popped[1].message.properties)
