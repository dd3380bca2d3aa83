"""Who may do what: every kind of request, and every way to get around the check."""

import logging

import msgspec
import pytest

from tianzhou.broker.acl.accounts import FileContent, Rules, make_rules
from tianzhou.broker.acl.guard import UNSIGNED_FIELD, Guard
from tianzhou.errors import RequestError
from tianzhou.protocol import acl
from tianzhou.protocol.bodies.auth import PlainAccessConfig
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command

SECRET = "right-secret"  # noqa: S105 - of a test
ADMIN = acl.Credentials("administrator", SECRET)
PLAIN = acl.Credentials("plain-account", SECRET)
PEER = "203.0.113.5:4711"
TOPICS = {7: "granted", 8: "secret", 9: "published"}


def rules() -> Rules:
    content = FileContent(
        global_white_remote_addresses=["10.1.1.*"],
        accounts=[
            PlainAccessConfig(access_key="administrator", secret_key=SECRET, admin=True),
            PlainAccessConfig(
                access_key="plain-account",
                secret_key=SECRET,
                white_remote_address="10.2.2.2",
                topic_perms=["granted=SUB", "published=PUB"],
                group_perms=["own=SUB"],
            ),
        ],
    )
    return make_rules([("test", content)])


def request(
    code: int, body: object = b"", *, by: acl.Credentials | None = PLAIN, **fields: object
) -> Command:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    texts = {name: str(value) for name, value in fields.items()}
    command = Command(code=code, ext_fields=texts, body=data)
    if by is not None:
        acl.sign(command, by)
    return command


def why_refused(command: Command, peer: str = PEER) -> str | None:
    guard = Guard(rules, TOPICS.get)
    refusal: RequestError | None = None
    try:
        guard.check(peer, command)
    except RequestError as e:
        refusal = e
    assert guard.refused_count == (refusal is not None)
    if refusal is None:
        return None
    assert refusal.code == ResponseCode.NO_PERMISSION
    assert SECRET not in str(refusal)
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


def tampered() -> Command:
    command = request(RequestCode.SEND_MESSAGE, b"x", topic="published")
    command.body = b"y"
    return command


def replayed() -> Command:
    """Another request with the signature of a good one."""
    good = request(RequestCode.SEND_MESSAGE, b"x", topic="published")
    fields = dict(good.fields) | {"topic": "secret"}
    return Command(code=RequestCode.SEND_MESSAGE, ext_fields=fields, body=b"x")


def without_signature() -> Command:
    command = request(RequestCode.SEND_MESSAGE, b"x", topic="published")
    fields = dict(command.fields)
    del fields[acl.SIGNATURE]
    command.ext_fields = fields
    return command


WRONG = acl.Credentials("plain-account", "other-secret")
NOBODY = acl.Credentials("nobody-here", SECRET)
NOT_RIGHT = "account plain-account or its signature is not right"

ATTACKS = {
    "not signed": (request(RequestCode.SEND_MESSAGE, by=None, topic="published"), "not signed"),
    "no signature": (without_signature(), NOT_RIGHT),
    "wrong secret": (request(RequestCode.SEND_MESSAGE, by=WRONG, topic="published"), NOT_RIGHT),
    "unknown account": (
        request(RequestCode.SEND_MESSAGE, by=NOBODY, topic="published"),
        "account nobody-here or its signature is not right",
    ),
    "body changed": (tampered(), NOT_RIGHT),
    "signature of another request": (replayed(), NOT_RIGHT),
    "send to a topic of others": (
        request(RequestCode.SEND_MESSAGE_V2, b="secret"), "no permission PUB for topic secret"),
    "send to a topic that may only be read": (
        request(RequestCode.SEND_MESSAGE_V2, b="granted"), "no permission PUB for topic granted"),
    "batch to a topic of others": (
        request(RequestCode.SEND_BATCH_MESSAGE, b="secret"), "no permission PUB for topic secret"),
    "read a topic that may only be written": (
        request(RequestCode.PULL_MESSAGE, topic="published", consumerGroup="own"),
        "no permission SUB for topic published"),
    "read as another group": (
        request(RequestCode.PULL_MESSAGE, topic="granted", consumerGroup="other"),
        "no permission SUB for group other"),
    "read the retries of another group": (
        request(RequestCode.PULL_MESSAGE, topic="%RETRY%other", consumerGroup="own"),
        "no permission SUB for group other"),
    "send into the retries of another group": (
        request(RequestCode.SEND_MESSAGE_V2, b="%RETRY%other", a="own"),
        "no permission SUB for group other"),
    "send back a message of a topic of others": (
        request(RequestCode.CONSUMER_SEND_MSG_BACK, group="own", offset=8),
        "no permission SUB for topic secret"),
    "view a message of a topic of others": (
        request(RequestCode.VIEW_MESSAGE_BY_ID, offset=8), "no permission SUB for topic secret"),
    "commit the half of others": (
        request(RequestCode.END_TRANSACTION, commitLogOffset=8),
        "no permission PUB for topic secret"),
    "subscribe to a topic of others": (
        request(RequestCode.HEART_BEAT, {"consumerDataSet": [
            {"groupName": "own", "subscriptionDataSet": [{"topic": "secret"}]}]}),
        "no permission SUB for topic secret"),
    "heartbeat that cannot be read": (request(RequestCode.HEART_BEAT, b"{"), "cannot be read"),
    "administrate": (
        request(RequestCode.UPDATE_BROKER_CONFIG, b"a=b"), "needs an administrator"),
    "change access control": (
        request(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, accessKey="plain-account", admin="true"),
        "needs an administrator"),
    "an unknown code": (request(29_999), "needs an administrator"),
    "an address in a header": (
        request(RequestCode.SEND_MESSAGE, by=None, topic="published", remoteAddr="10.1.1.1",
                bornHost="10.1.1.1"), "not signed"),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_logged_and_told_without_leaking(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    command, expected = ATTACKS[name]
    with caplog.at_level(logging.WARNING):
        why = why_refused(command)
    assert why is not None
    assert expected in why
    assert PEER in caplog.text
    assert SECRET not in caplog.text


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
