"""Requests that try to bypass access control: for the check alone and for a running broker.

Topics: "granted" may be read and "published" be written by a plain account, whose group is "own".
Everything named "secret" belongs to others.
"""

from collections.abc import Callable
from functools import cache

import msgspec
from msgspec import inspect
from tests.support.header_table import REQUEST_HEADERS

from tianzhou.broker.acl.accounts import FileContent
from tianzhou.protocol import acl
from tianzhou.protocol.bodies.auth import PlainAccessConfig
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command

SECRET_KEY = "right-key-of-both"  # noqa: S105 - of a test
ADMIN = acl.Credentials("administrator", SECRET_KEY)
PLAIN = acl.Credentials("plain-account", SECRET_KEY)
READER = acl.Credentials("reader-account", SECRET_KEY)
"""May read and write every topic that is not one of the broker's own."""
ACCOUNTS = FileContent(
    global_white_remote_addresses=["10.1.1.*"],
    accounts=[
        PlainAccessConfig(
            access_key="administrator",
            secret_key=SECRET_KEY,
            white_remote_address="10.2.2.2",
            admin=True,
        ),
        PlainAccessConfig(
            access_key="plain-account",
            secret_key=SECRET_KEY,
            white_remote_address="10.2.2.2",
            topic_perms=["granted=SUB", "published=PUB"],
            group_perms=["own=SUB"],
        ),
        PlainAccessConfig(
            access_key="reader-account",
            secret_key=SECRET_KEY,
            default_topic_perm="PUB|SUB",
            default_group_perm="SUB",
            group_perms=["secret=DENY"],
        ),
    ],
)


@cache
def required_fields(code: int) -> dict[str, str]:
    """The required fields of the header of a request: zeros, false and an unknown name."""
    try:
        kind = inspect.type_info(REQUEST_HEADERS[RequestCode(code)])
    except (KeyError, ValueError):
        return {}
    assert isinstance(kind, inspect.StructType)
    texts: dict[type[inspect.Type], str] = {inspect.IntType: "0", inspect.BoolType: "false"}
    return {
        field.encode_name: texts.get(type(field.type), "unknown")
        for field in kind.fields
        if field.required
    }


def request(
    code: int, body: object = b"", *, by: acl.Credentials | None = PLAIN, **fields: object
) -> Command:
    """A request with these fields and the other required ones of its header."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    texts = required_fields(code) | {name: str(value) for name, value in fields.items()}
    command = Command(code=code, ext_fields=texts, body=data)
    if by is not None:
        acl.sign(command, by)
    return command


def said_by(command: Command) -> str:
    """All texts of a request."""
    return " ".join([*command.fields.values(), bytes(command.body).decode()])


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


WRONG = acl.Credentials("plain-account", "another-key")
UNKNOWN_ACCOUNT = acl.Credentials("unknown-account", SECRET_KEY)
NOT_RIGHT = "account plain-account or its signature is not right"

Attack = tuple[Command, str]
"""A request, and the text of its refusal."""


def attacks(log_offset_of: Callable[[str], int]) -> dict[str, Attack]:
    """By attack. `log_offset_of` returns the log offset of a message of a topic."""
    secret, retry = log_offset_of("secret"), log_offset_of("%RETRY%secret")
    return {
        "not signed": (request(RequestCode.SEND_MESSAGE, by=None, topic="published"), "not signed"),
        "no signature": (without_signature(), NOT_RIGHT),
        "wrong secret": (request(RequestCode.SEND_MESSAGE, by=WRONG, topic="published"), NOT_RIGHT),
        "unknown account": (
            request(RequestCode.SEND_MESSAGE, by=UNKNOWN_ACCOUNT, topic="published"),
            "account unknown-account or its signature is not right",
        ),
        "body changed": (tampered(), NOT_RIGHT),
        "signature of another request": (replayed(), NOT_RIGHT),
        "send to a topic of others": (
            request(RequestCode.SEND_MESSAGE_V2, b="secret"), "no permission PUB for topic secret"),
        "send to a topic that may only be read": (
            request(RequestCode.SEND_MESSAGE_V2, b="granted"),
            "no permission PUB for topic granted"),
        "batch to a topic of others": (
            request(RequestCode.SEND_BATCH_MESSAGE, b="secret"),
            "no permission PUB for topic secret"),
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
            request(RequestCode.CONSUMER_SEND_MSG_BACK, group="own", offset=secret),
            "no permission SUB for the topic of this message"),
        "send back a retry of another group": (
            request(RequestCode.CONSUMER_SEND_MSG_BACK, group="own", offset=retry),
            "no permission SUB for the topic of this message"),
        "view a message of a topic of others": (
            request(RequestCode.VIEW_MESSAGE_BY_ID, offset=secret),
            "no permission SUB for the topic of this message"),
        "commit the half of others": (
            request(RequestCode.END_TRANSACTION, commitLogOffset=secret),
            "no permission PUB for the topic of this message"),
        "subscribe to a topic of others": (
            request(RequestCode.HEART_BEAT, {"consumerDataSet": [
                {"groupName": "own", "subscriptionDataSet": [{"topic": "secret"}]}]}),
            "no permission SUB for topic secret"),
        "heartbeat that cannot be read": (request(RequestCode.HEART_BEAT, b"{"), "cannot be read"),
        "view a message by a number that Java does not read": (
            request(RequestCode.VIEW_MESSAGE_BY_ID, offset=f"{secret}.0"),
            "field 'offset' is"),
        "send back a message by a number that Java does not read": (
            request(RequestCode.CONSUMER_SEND_MSG_BACK, group="own", offset=f"{secret}e0"),
            "field 'offset' is"),
        "commit a half by a number that Java does not read": (
            request(RequestCode.END_TRANSACTION, commitLogOffset=f"{secret}.0"),
            "field 'commitLogOffset' is"),
        "wait for a message at the end of the log": (
            request(RequestCode.CONSUMER_SEND_MSG_BACK, group="own", offset=2**40),
            "no message begins there"),
        "reply into a topic of others": (
            request(RequestCode.SEND_REPLY_MESSAGE, topic="secret"),
            "no permission PUB for topic secret"),
        "reply into a topic of others in short form": (
            request(RequestCode.SEND_REPLY_MESSAGE_V2, b="secret"),
            "no permission PUB for topic secret"),
        "reply without a permission for replies": (
            request(RequestCode.SEND_REPLY_MESSAGE_V2, b="DefaultCluster_REPLY_TOPIC"),
            "no permission PUB for topic DefaultCluster_REPLY_TOPIC"),
        "progress in a topic of others": (
            request(RequestCode.GET_CONSUME_STATS, consumerGroup="own", topic="secret"),
            "no permission PUB or SUB for topic secret"),
        "progress in a list of topics": (
            request(RequestCode.GET_CONSUME_STATS, consumerGroup="own", topicList="granted;secret"),
            "no permission PUB or SUB for topic secret"),
        "recall a message of others": (
            request(RequestCode.RECALL_MESSAGE, topic="secret"),
            "no permission PUB for topic secret"),
        "acknowledge in a batch for others": (
            request(RequestCode.BATCH_ACK_MESSAGE, {"acks": [{"c": "own", "t": "granted"},
                                                             {"c": "secret", "t": "granted"}]}),
            "no permission SUB for group secret"),
        "take part in transactions": (
            request(RequestCode.UPDATE_CONSUMER_OFFSET, by=READER, topic="granted",
                    consumerGroup="CID_RMQ_SYS_TRANS"),
            "only an administrator has"),
        "administrate": (
            request(RequestCode.UPDATE_BROKER_CONFIG, b"a=b"), "needs an administrator"),
        "change access control": (
            request(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, accessKey="plain-account",
                    admin="true"),
            "needs an administrator"),
        "an unknown code": (request(29_999), "needs an administrator"),
        "an address in a header": (
            request(RequestCode.SEND_MESSAGE, by=None, topic="published", remoteAddr="10.1.1.1",
                    bornHost="10.1.1.1"), "not signed"),
    }  # fmt: skip
