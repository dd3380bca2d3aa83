"""Permissions of every kind of request, and attempts to bypass the check."""

import logging

import pytest
from tests.unit.broker.acl.attacks import (
    ACCOUNTS,
    ADMIN,
    PLAIN,
    READER,
    SECRET_KEY,
    UNKNOWN_ACCOUNT,
    WRONG,
    attacks,
    request,
    said_by,
)

from tianzhou.broker.acl.accounts import Rules, make_rules
from tianzhou.broker.acl.guard import DenialReason, Guard
from tianzhou.broker.acl.needs import MessageTopic
from tianzhou.broker.acl.rights import Rights
from tianzhou.errors import RequestError
from tianzhou.limits import LOOSE_JSON_BYTES_MAX
from tianzhou.protocol.acl import UNSIGNED_FIELD
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.log_rate_limit import LINES_A_SECOND
from tianzhou.remoting.scheduler import at_once

PEER = "203.0.113.5:4711"
LOG_OFFSETS = {"granted": 7, "secret": 8, "published": 9, "%RETRY%secret": 10}
TOPICS = {offset: MessageTopic(topic, topic) for topic, offset in LOG_OFFSETS.items()}


ATTACKS = attacks(LOG_OFFSETS.__getitem__)


def rules() -> Rules:
    return make_rules([("test", ACCOUNTS)])


def why_refused(command: Command, peer: str = PEER) -> str | None:
    guard = Guard(rules, TOPICS.get)
    refusal: RequestError | None = None
    try:
        at_once(guard.check(peer, command))
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
def test_granted_requests_pass(command: Command) -> None:
    assert why_refused(command) is None


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_and_logged_without_leaking(
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


def test_an_unknown_account_and_a_wrong_secret_get_the_same_refusal() -> None:
    known = why_refused(request(RequestCode.GET_MAX_OFFSET, by=WRONG, topic="t"))
    unknown = why_refused(request(RequestCode.GET_MAX_OFFSET, by=UNKNOWN_ACCOUNT, topic="t"))
    assert known is not None
    assert unknown is not None
    assert known.replace("plain-account", "?") == unknown.replace("unknown-account", "?")


@pytest.mark.parametrize("peer", ["10.1.1.77:1", "[::ffff:10.1.1.77]:1"])
def test_a_white_listed_address_needs_no_signature(peer: str) -> None:
    assert why_refused(request(RequestCode.UPDATE_BROKER_CONFIG, by=None), peer) is None


def test_the_white_list_of_an_account_needs_its_name() -> None:
    unsigned = request(RequestCode.SEND_MESSAGE, by=None, topic="t", AccessKey="plain-account")
    assert why_refused(unsigned, "10.2.2.2:1") is None
    assert why_refused(unsigned, "10.2.2.3:1") is not None
    assert why_refused(request(RequestCode.SEND_MESSAGE, by=None, topic="t"), "10.2.2.2:1")


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
    ],
)
@pytest.mark.parametrize("account", ["plain-account", "administrator"])
def test_white_list_of_an_administrator_does_not_replace_its_signature(
    code: int, account: str
) -> None:
    unsigned = request(code, by=None, AccessKey=account)
    assert why_refused(unsigned, "10.2.2.2:1") is not None
    assert why_refused(request(code, by=PLAIN), "10.2.2.2:1") is not None, "it is none"
    assert why_refused(request(code, by=ADMIN), "10.2.2.2:1") is None


def test_a_field_that_old_clients_add_after_signing_is_accepted() -> None:
    command = request(RequestCode.QUERY_MESSAGE, topic="granted", key="k")
    command.ext_fields = dict(command.fields) | {UNSIGNED_FIELD: "true"}
    assert why_refused(command) is None
    signed = request(RequestCode.QUERY_MESSAGE, topic="granted", _UNIQUE_KEY_QUERY="true")
    assert why_refused(signed) is None


def test_traces_may_be_written_but_not_read() -> None:
    pull = request(RequestCode.PULL_MESSAGE, topic="RMQ_SYS_TRACE_TOPIC", consumerGroup="own")
    assert "RMQ_SYS_TRACE_TOPIC" in (why_refused(pull) or "")


INTERNAL = (
    "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "OFFSET_MOVED_EVENT",
    "rmq_sys_REVIVE_LOG_DefaultCluster", "DefaultCluster_REPLY_TOPIC", "RMQ_SYS_TRACE_TOPIC",
    "my_traces", "%RETRY%secret", "%DLQ%secret",
)  # fmt: skip
READS = (
    RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.POP_MESSAGE,
    RequestCode.PEEK_MESSAGE, RequestCode.NOTIFICATION, RequestCode.POLLING_INFO,
    RequestCode.QUERY_MESSAGE, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET, RequestCode.GET_EARLIEST_MSG_STORETIME,
    RequestCode.GET_TOPIC_STATS_INFO, RequestCode.GET_TOPIC_CONFIG, RequestCode.GET_CONSUME_STATS,
    RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET,
)  # fmt: skip


@pytest.mark.parametrize("topic", INTERNAL)
def test_a_permission_for_all_topics_excludes_the_brokers_own(topic: str) -> None:
    guard = Guard(rules, {7: MessageTopic(topic, "granted")}.get, Rights(trace_topic="my_traces"))

    def passes(command: Command) -> bool:
        try:
            at_once(guard.check(PEER, command))
        except RequestError:
            return False
        return True

    for code in READS:
        fields = {"topic": topic, "consumerGroup": "own"}
        assert not passes(request(code, by=READER, **fields)), code
        assert passes(request(code, by=ADMIN, **fields)), code
        assert passes(request(code, by=READER, **fields | {"topic": "ordinary"})), code
    for by, may in ((READER, False), (ADMIN, True)):
        beat = {"consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": topic}]}]}
        assert passes(request(RequestCode.HEART_BEAT, beat, by=by)) is may
        assert passes(request(RequestCode.VIEW_MESSAGE_BY_ID, by=by, offset=7)) is may
        back = request(RequestCode.CONSUMER_SEND_MSG_BACK, by=by, group="g", offset=7)
        assert passes(back) is may
    is_written_by_clients = topic.endswith("REPLY_TOPIC") or "TRACE" in topic or "trace" in topic
    send = request(RequestCode.SEND_MESSAGE, by=READER, topic=topic)
    assert passes(send) is is_written_by_clients


def test_a_half_is_ended_by_the_permission_for_its_real_topic() -> None:
    guard = Guard(rules, {7: MessageTopic("RMQ_SYS_TRANS_HALF_TOPIC", "published")}.get)
    assert at_once(guard.check(PEER, request(RequestCode.END_TRANSACTION, commitLogOffset=7)))
    with pytest.raises(RequestError):
        at_once(guard.check(PEER, request(RequestCode.VIEW_MESSAGE_BY_ID, offset=7)))


def test_a_long_body_in_a_loose_dialect_is_refused_before_it_is_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loose = b"{'clientID': '" + b"x" * (LOOSE_JSON_BYTES_MAX + 1) + b"'}"
    with caplog.at_level(logging.WARNING):
        assert why_refused(request(RequestCode.HEART_BEAT, loose))
    assert "bytes that are no strict JSON" in caplog.text


def test_a_parked_request_is_checked_by_the_current_rights() -> None:
    now = rules()
    guard = Guard(lambda: now, TOPICS.get)
    plain = "plain-account"
    assert guard.may_publish(PEER, plain, "published")
    assert guard.may_consume(PEER, plain, "granted", "own")
    assert not guard.may_publish(PEER, plain, "granted")
    assert not guard.may_consume(PEER, plain, "granted", "other")
    assert not guard.may_consume(PEER, plain, "published", "own")
    assert guard.may_publish("10.1.1.7:1", None, "secret"), "a white-listed address"
    assert guard.may_publish("10.2.2.2:1", plain, "secret"), "the white list of the account"
    assert not guard.may_publish(PEER, None, "published"), "white-listed no more"
    now = Rules()
    assert not guard.may_publish(PEER, plain, "published"), "an account that is gone"


def test_the_log_names_the_topic_that_the_remark_hides(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        why = why_refused(request(RequestCode.VIEW_MESSAGE_BY_ID, offset=8))
    hidden = "no message begins there, or no permission SUB for the topic of this message"
    assert why == f"access denied: {hidden}"
    assert why == why_refused(request(RequestCode.VIEW_MESSAGE_BY_ID, offset=1234)), "no oracle"
    assert "no permission SUB for topic secret" in caplog.text


def test_a_flood_of_refusals_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard(rules, TOPICS.get)
    unsigned = request(RequestCode.GET_MAX_OFFSET, by=None, topic="t")
    with caplog.at_level(logging.WARNING):
        for _ in range(50 * LINES_A_SECOND):
            with pytest.raises(RequestError):
                at_once(guard.check(PEER, unsigned))
    assert guard.refused == {DenialReason.SIGNATURE: 50 * LINES_A_SECOND}
    assert len(caplog.records) < 50 * LINES_A_SECOND
