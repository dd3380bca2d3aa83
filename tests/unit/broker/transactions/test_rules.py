"""Halves, ends and the decisions of checks, without a broker."""

import msgspec
import pytest

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.tables.clients import Client, ProducerTable
from tianzhou.broker.transactions import rules
from tianzhou.broker.transactions.rules import Verdict
from tianzhou.errors import RequestError
from tianzhou.message import StoredMessage
from tianzhou.names import CHECK_MAX_TOPIC, HALF_TOPIC
from tianzhou.protocol import properties, sysflag
from tianzhou.protocol.codes import ResponseCode
from tianzhou.store.message_store import Draft

HOST = ("10.0.0.1", 10911)
HALF = StoredMessage(
    topic=HALF_TOPIC, body=b"x", queue_id=0, queue_offset=7, log_offset=700, flag=3,
    sys_flag=sysflag.COMPRESSED, born_time_ms=1000, born_host=HOST, store_time_ms=2000,
    store_host=HOST, reconsume_count=0, prepared_log_offset=0, body_crc=0, size_bytes=100,
    properties={
        "TRAN_MSG": "true", "PGROUP": "p", "REAL_TOPIC": "Orders", "REAL_QID": "2", "mine": "1",
    },
)  # fmt: skip
CONFIG = BrokerConfig(transaction_time_out=6000, transaction_check_max=15, file_reserved_time=1)


def draft(text: str, *, reconsume_count: int = 0) -> Draft:
    return Draft(
        "Orders", 2, b"x", text, 1000, HOST, HOST, 3, sysflag.TRANSACTION_PREPARED,
        reconsume_count,
    )  # fmt: skip


def half_with(**changed: str) -> StoredMessage:
    return msgspec.structs.replace(HALF, properties=HALF.properties | changed)


def test_a_half_has_its_real_queue_in_its_properties() -> None:
    found = {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "u"}
    half = rules.as_half(draft(properties.encode(found)), found)
    assert (half.topic, half.queue_id) == (HALF_TOPIC, 0)
    assert sysflag.transaction_state(half.sys_flag) == sysflag.TRANSACTION_NONE
    named = properties.decode(half.properties_text)
    assert named == found | {"__transactionId__": "u", "REAL_TOPIC": "Orders", "REAL_QID": "2"}


@pytest.mark.parametrize(
    ("found", "reconsume_count", "is_half"),
    [
        ({"TRAN_MSG": "true"}, 0, True),
        ({"TRAN_MSG": "True"}, 3, True),
        ({"TRAN_MSG": "false"}, 0, False),
        ({}, 0, False),
        ({"TRAN_MSG": "true", "DELAY": "3"}, 0, True),
        # Sent back by a consumer of before 4.6.1.
        ({"TRAN_MSG": "true", "DELAY": "3"}, 1, False),
    ],
)
def test_which_messages_are_halves(
    found: dict[str, str], reconsume_count: int, is_half: bool
) -> None:
    assert rules.is_half(draft("", reconsume_count=reconsume_count), found) is is_half


def test_a_half_has_space_for_properties_of_checks() -> None:
    found = {"TRAN_MSG": "true", "PGROUP": "p", "mine": "v" * 32_650}
    with pytest.raises(RequestError) as refused:
        rules.as_half(draft(properties.encode(found)), found)
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL


def test_messages_made_of_a_half() -> None:
    done = rules.committed(HALF, "Orders", 2, HOST)
    assert (done.topic, done.queue_id, done.flag, done.prepared_log_offset) == ("Orders", 2, 3, 700)
    assert done.sys_flag == sysflag.COMPRESSED | sysflag.TRANSACTION_COMMIT
    assert properties.decode(done.properties_text) == {"PGROUP": "p", "mine": "1"}
    again = rules.renewed(HALF, 4, HOST)
    assert (again.topic, again.born_time_ms, again.flag) == (HALF_TOPIC, 1000, 3)
    assert properties.decode(again.properties_text) == HALF.properties | {
        "TRANSACTION_CHECK_TIMES": "4"
    }
    assert rules.given_up(HALF, HOST).topic == CHECK_MAX_TOPIC


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({}, ("Orders", 2)),
        ({"REAL_QID": "x"}, None),
        ({"REAL_QID": "9" * 5000}, None),
        ({"REAL_TOPIC": ""}, None),
    ],
)
def test_real_queue_of_a_half(changed: dict[str, str], place: tuple[str, int] | None) -> None:
    assert rules.real_queue(half_with(**changed)) == place


# -- ends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "offsets"),
    [
        (b"5", [5]),
        (b"5,", [5]),
        (b"1,2,3,", [1, 2, 3]),
        (b"", []),
        (b",,x,-1,4", [4]),
        (b"\xff\xfe", []),
        (b"9" * 9000, []),
    ],
)
def test_ends_of_both_versions_are_read(body: bytes, offsets: list[int]) -> None:
    end = msgspec.structs.replace(HALF, body=body, properties={"TAGS": "d"})
    assert rules.ended_by(end) == offsets
    assert rules.ended_by(msgspec.structs.replace(end, properties={"TAGS": "x"})) == []


def test_ends_share_records_as_far_as_their_size_allows() -> None:
    drafts = list(rules.end_drafts(range(100, 110), 11, 5, HOST))
    assert [(bytes(each.body), count) for each, count in drafts] == [
        (b"100,101,102", 3), (b"103,104,105", 3), (b"106,107,108", 3), (b"109", 1),
    ]  # fmt: skip
    assert {each.properties_text for each, _ in drafts} == {"TAGS\x01d\x02"}
    assert [bytes(each.body) for each, _ in rules.end_drafts([1, 2], 1, 5, HOST)] == [
        b"1", b"2",
    ]  # fmt: skip
    assert list(rules.end_drafts([], 11, 5, HOST)) == []


# -- verdicts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "age_ms", "verdict"),
    [
        ({}, 0, Verdict.WAIT),
        ({}, 6000, Verdict.WAIT),
        ({}, 6001, Verdict.CHECK),
        ({}, -1, Verdict.CHECK),
        ({}, 3_600_001, Verdict.GIVE_UP),
        ({"TRANSACTION_CHECK_TIMES": "14"}, 7000, Verdict.CHECK),
        ({"TRANSACTION_CHECK_TIMES": "15"}, 7000, Verdict.GIVE_UP),
        ({"TRANSACTION_CHECK_TIMES": "many"}, 7000, Verdict.CHECK),
        ({"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}, 60_000, Verdict.WAIT),
        ({"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}, 60_001, Verdict.CHECK),
        ({"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}, -5, Verdict.WAIT),
        ({"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"}, 1001, Verdict.CHECK),
        ({"CHECK_IMMUNITY_TIME_IN_SECONDS": "soon"}, 6000, Verdict.WAIT),
    ],
)
def test_verdicts_on_open_halves(changed: dict[str, str], age_ms: int, verdict: Verdict) -> None:
    assert rules.judge(half_with(**changed), age_ms, CONFIG) is verdict


# -- whom to reply to ------------------------------------------------------------------------------


def test_a_producer_is_found_by_its_id_while_it_is_connected() -> None:
    table = ProducerTable[str]()
    table.heartbeat("old channel", Client("id", 0, 0, 1), "g1")
    table.heartbeat("old channel", Client("id", 0, 0, 1), "g2")
    assert table.find("id") == "old channel"
    table.unregister("old channel", "g1")
    assert table.find("id") == "old channel"
    table.heartbeat("new channel", Client("id", 0, 0, 2), "g2")
    list(table.closed("old channel"))
    assert table.find("id") == "new channel"
    list(table.closed("new channel"))
    assert table.find("id") is None


def test_open_halves_are_counted_from_the_first_that_is_open() -> None:
    ended = rules.EndedHalves(5)
    assert ended.open_count(5) == 0
    assert ended.open_count(25) == 20
    for queue_offset in (6, 20, 23):
        ended.add(queue_offset)
    assert ended.open_count(25) == 17
