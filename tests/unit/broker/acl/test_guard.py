"""Who may do what: every kind of request, and every way to get around the check."""

import logging

import pytest
from tests.unit.broker.acl.attacks import (
    ACCOUNTS,
    ADMIN,
    NOBODY,
    SECRET_KEY,
    WRONG,
    attacks,
    request,
    said_by,
)

from tianzhou.broker.acl.accounts import Rules, make_rules
from tianzhou.broker.acl.guard import UNSIGNED_FIELD, Guard, Lack
from tianzhou.broker.line_limit import LINES_A_SECOND
from tianzhou.errors import RequestError
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command

PEER = "203.0.113.5:4711"
PLACES = {"granted": 7, "secret": 8, "published": 9, "%RETRY%secret": 10}
TOPICS = {place: topic for topic, place in PLACES.items()}


ATTACKS = attacks(PLACES.__getitem__)


def rules() -> Rules:
    return make_rules([("test", ACCOUNTS)])


def why_refused(command: Command, peer: str = PEER) -> str | None:
    guard = Guard(rules, TOPICS.get)
    refusal: RequestError | None = None
    try:
        guard.check(peer, command)
    except RequestError as e:
        refusal = e
    assert guard.refused.total() == (refusal is not None)
    if refusal is None:
        return None
    assert refusal.code == ResponseCode.NO_PERMISSION
    assert SECRET_KEY not in str(refusal)
    return refusal.remark


HEARTBEAT = {
    "clientID": "c",
    "consumerDataSet": [{"groupName": "own", "subscriptionDataSet": [{"topic": "granted"}]}],
}

MAY = [
    request(RequestCode.SEND_MESSAGE, b"x", topic="published"),
    request(RequestCode.SEND_MESSAGE_V2, b"x", b="published"),
    request(RequestCode.SEND_MESSAGE_V2, b"x", b="%RETRY%own", a="CLIENT_INNER_PRODUCER"),
    request(RequestCode.SEND_MESSAGE_V2, b"x", b="RMQ_SYS_TRACE_TOPIC"),
    request(RequestCode.PULL_MESSAGE, topic="granted", consumerGroup="own"),
    request(RequestCode.PULL_MESSAGE, topic="%RETRY%own", consumerGroup="own"),
    request(RequestCode.HEART_BEAT, HEARTBEAT),
    request(RequestCode.CONSUMER_SEND_MSG_BACK, group="own", offset=7),
    request(RequestCode.VIEW_MESSAGE_BY_ID, offset=7),
    request(RequestCode.END_TRANSACTION, commitLogOffset=9),
    request(RequestCode.GET_MAX_OFFSET, topic="published"),
    request(RequestCode.LOCK_BATCH_MQ, {"consumerGroup": "own", "mqSet": []}),
    request(RequestCode.UNREGISTER_CLIENT, producerGroup="any"),
    request(RequestCode.UPDATE_BROKER_CONFIG, b"a=b", by=ADMIN),
    request(RequestCode.SEND_MESSAGE, b"x", by=ADMIN, topic="anything"),
]


@pytest.mark.parametrize("command", MAY, ids=lambda c: f"{RequestCode(c.code).name}-{c.fields}")
def test_what_is_granted_passes(command: Command) -> None:
    assert why_refused(command) is None


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_logged_and_told_without_leaking(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    command, expected = ATTACKS[name]
    with caplog.at_level(logging.WARNING):
        why = why_refused(command)
    assert why is not None
    assert expected in why
    assert "secret" not in why or "secret" in said_by(command), "only what was said may be repeated"
    assert PEER in caplog.text
    assert SECRET_KEY not in caplog.text


def test_a_stranger_cannot_tell_an_unknown_account_from_a_wrong_secret() -> None:
    known = why_refused(request(RequestCode.GET_MAX_OFFSET, by=WRONG, topic="t"))
    unknown = why_refused(request(RequestCode.GET_MAX_OFFSET, by=NOBODY, topic="t"))
    assert known is not None
    assert unknown is not None
    assert known.replace("plain-account", "?") == unknown.replace("nobody-here", "?")


@pytest.mark.parametrize("peer", ["10.1.1.77:1", "[::ffff:10.1.1.77]:1"])
def test_a_white_listed_address_needs_no_signature(peer: str) -> None:
    assert why_refused(request(RequestCode.UPDATE_BROKER_CONFIG, by=None), peer) is None


def test_the_white_list_of_an_account_needs_its_name() -> None:
    unsigned = request(RequestCode.SEND_MESSAGE, by=None, topic="t", AccessKey="plain-account")
    assert why_refused(unsigned, "10.2.2.2:1") is None
    assert why_refused(unsigned, "10.2.2.3:1") is not None
    assert why_refused(request(RequestCode.SEND_MESSAGE, by=None, topic="t"), "10.2.2.2:1")


def test_a_field_that_old_clients_add_after_signing_is_let_pass() -> None:
    command = request(RequestCode.QUERY_MESSAGE, topic="granted", key="k")
    command.ext_fields = dict(command.fields) | {UNSIGNED_FIELD: "true"}
    assert why_refused(command) is None
    signed = request(RequestCode.QUERY_MESSAGE, topic="granted", _UNIQUE_KEY_QUERY="true")
    assert why_refused(signed) is None


def test_traces_may_be_left_but_not_read() -> None:
    pull = request(RequestCode.PULL_MESSAGE, topic="RMQ_SYS_TRACE_TOPIC", consumerGroup="own")
    assert "RMQ_SYS_TRACE_TOPIC" in (why_refused(pull) or "")


def test_the_log_names_the_topic_that_the_remark_hides(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        why = why_refused(request(RequestCode.VIEW_MESSAGE_BY_ID, offset=8))
    assert why == "access denied: no permission SUB for the topic of this message"
    assert "no permission SUB for topic secret" in caplog.text


def test_a_flood_of_refusals_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard(rules, TOPICS.get)
    unsigned = request(RequestCode.GET_MAX_OFFSET, by=None, topic="t")
    with caplog.at_level(logging.WARNING):
        for _ in range(50 * LINES_A_SECOND):
            with pytest.raises(RequestError):
                guard.check(PEER, unsigned)
    assert guard.refused == {Lack.SIGNATURE: 50 * LINES_A_SECOND}
    assert len(caplog.records) < 50 * LINES_A_SECOND
