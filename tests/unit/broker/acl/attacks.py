"""The ways around access control, as requests: for the check alone and for a running broker.

Topics: "granted" may be read and "published" be written by a plain account, whose group is "own".
Everything named "secret" belongs to others.
"""

from collections.abc import Callable

import msgspec

from tianzhou.broker.acl.accounts import FileContent
from tianzhou.protocol import acl
from tianzhou.protocol.bodies.auth import PlainAccessConfig
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command

SECRET_KEY = "right-key-of-both"  # noqa: S105 - of a test
ADMIN = acl.Credentials("administrator", SECRET_KEY)
PLAIN = acl.Credentials("plain-account", SECRET_KEY)
ACCOUNTS = FileContent(
    global_white_remote_addresses=["10.1.1.*"],
    accounts=[
        PlainAccessConfig(access_key="administrator", secret_key=SECRET_KEY, admin=True),
        PlainAccessConfig(
            access_key="plain-account",
            secret_key=SECRET_KEY,
            white_remote_address="10.2.2.2",
            topic_perms=["granted=SUB", "published=PUB"],
            group_perms=["own=SUB"],
        ),
    ],
)


def request(
    code: int, body: object = b"", *, by: acl.Credentials | None = PLAIN, **fields: object
) -> Command:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    texts = {name: str(value) for name, value in fields.items()}
    command = Command(code=code, ext_fields=texts, body=data)
    if by is not None:
        acl.sign(command, by)
    return command


def said_by(command: Command) -> str:
    """All that whoever sent a request has said in it."""
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
NOBODY = acl.Credentials("nobody-here", SECRET_KEY)
NOT_RIGHT = "account plain-account or its signature is not right"

Attack = tuple[Command, str]
"""A request, and what it must be told."""


def attacks(place_of: Callable[[str], int]) -> dict[str, Attack]:
    """By what is tried. `place_of` gives the log offset of a message of a topic."""
    secret, retry = place_of("secret"), place_of("%RETRY%secret")
    return {
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
