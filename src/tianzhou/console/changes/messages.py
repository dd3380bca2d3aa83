"""Changes of messages: a test message, one sent or consumed again, a timed one cancelled."""

import msgspec

from tianzhou.admin.messages import QueueRef
from tianzhou.admin.redelivery import CONSUMED, push_message
from tianzhou.admin.redelivery import resend as resend_stored
from tianzhou.console.changes.addresses import below
from tianzhou.console.text import Text
from tianzhou.console.views.messages import bounded, message_of, topic_in
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.refusals import Conflict, Invalid, NotFound
from tianzhou.console.web.route import Done, Plan, PlanRow, Prepared
from tianzhou.errors import RequestError, TargetError, TianzhouError
from tianzhou.message import Message, StoredMessage
from tianzhou.names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, UNSENDABLE_TOPICS, is_system_topic
from tianzhou.protocol import properties
from tianzhou.protocol.records.message_id import id_of, offset_id_of

KEYS_MAX, PROPERTIES_MAX = 1000, 20_000
DELAY_LEVELS = 18
_GROUPS_NAMED = 5


class SendMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A test message."""

    body: str
    tags: str = ""
    keys: str = ""
    """Separated by spaces."""
    properties: str = ""
    """One name=value a line."""
    delay_level: int = 0
    queue: str = ""
    """broker/queue; empty: any."""


class OfTopic(msgspec.Struct, frozen=True, kw_only=True):
    """The topic of a message, which a producer's id does not tell."""

    topic: str = ""


class ConsumeAgain(msgspec.Struct, frozen=True, kw_only=True):
    """The member that is to consume a message now."""

    group: str
    client: str
    topic: str = ""


# -- sending ---------------------------------------------------------------------------------------


async def send(ask: Ask, given: SendMessage) -> Prepared:
    """Send a test message to the topic in the address."""
    topic, admin = topic_in(ask), ask.cluster.admin
    check_sendable(topic)
    message = _message(topic, given)
    try:
        queues = await admin.messages.write_queues(topic)
    except TargetError as e:
        raise Invalid(Text("{why}", why=str(e))) from e
    queue = _queue(queues, given.queue) if given.queue else None
    size = len(message.body)
    plan = Plan(
        title=Text("Send a message to {topic}", topic=topic),
        rows=(
            PlanRow(
                subject=given.queue or topic, what=Text("Message"),
                after=f"{size} B, {given.tags or '-'}, {given.keys or '-'}",
            ),
        ),
        warnings=await _receivers(ask, topic),
        button=Text("Send"),
    )  # fmt: skip

    async def execute() -> Done:
        sent = await admin.messages.send(message, queue=queue)
        place = f"{sent.broker_name}/{sent.queue_id}@{sent.queue_offset}"
        return Done(
            subject=topic,
            notice=Text("Sent to {place}: {status}.", place=place, status=sent.status),
            location=below(ask, "/c/{}/messages", ask.cluster.name, topic=topic, q=place),
            after={
                "id": sent.message_id, "position": place, "bytes": size, "tags": given.tags,
                "keys": given.keys,
            },
        )  # fmt: skip

    return Prepared(plan, execute)


def check_sendable(topic: str) -> None:
    """Raises Invalid for topics that are RocketMQ's own."""
    if topic in UNSENDABLE_TOPICS or is_system_topic(topic):
        raise Invalid(
            Text("{topic} is a system topic; nothing is sent to it by hand.", topic=topic)
        )


def _message(topic: str, given: SendMessage) -> Message:
    if not 0 <= given.delay_level <= DELAY_LEVELS:
        raise Invalid(Text("A delay level is 0 to {n}.", n=DELAY_LEVELS), "delay_level")
    for name, value in (("tags", given.tags), ("keys", given.keys)):
        if len(value) > KEYS_MAX or not value.isprintable():
            problem = Text("At most {n} characters, without line breaks.", n=KEYS_MAX)
            raise Invalid(problem, name)
    return Message(
        topic, given.body.encode(), tags=given.tags or None, keys=tuple(given.keys.split()),
        delay_level=given.delay_level, properties=_properties(given.properties),
    )  # fmt: skip


def _properties(text: str) -> dict[str, str]:
    if len(text) > PROPERTIES_MAX:
        raise Invalid(Text("The properties are too long."), "properties")
    pairs: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        name, mark, value = line.partition("=")
        name, value = name.strip(), value.strip()
        if not mark or not name or not value or not line.isprintable():
            raise Invalid(Text("Write properties as name=value, one a line."), "properties")
        if name in properties.RESERVED:
            raise Invalid(
                Text("The property {name} is reserved for RocketMQ.", name=name), "properties"
            )
        pairs[name] = value
    return pairs


def _queue(queues: list[QueueRef], wanted: str) -> QueueRef:
    for at in queues:
        if f"{at.broker.name}/{at.queue_id}" == wanted:
            return at
    raise Invalid(Text("There is no queue {queue} that accepts messages.", queue=wanted), "queue")


async def _receivers(ask: Ask, topic: str) -> tuple[Text, ...]:
    """A warning with the groups that receive what is sent to a topic."""
    try:
        groups = await bounded(ask.cluster.admin.topics.groups(topic))
    except TianzhouError as e:
        return (Text("Which groups receive it is not known: {why}", why=str(e)),)
    if not groups:
        return ()
    named = ", ".join(groups[:_GROUPS_NAMED]) + (" ..." if len(groups) > _GROUPS_NAMED else "")
    return (Text("{n} group receives it: {names}|{n} groups receive it: {names}",
                 n=len(groups), names=named),)  # fmt: skip


async def _stored(ask: Ask, topic: str) -> StoredMessage:
    """The message in the address; its topic is a field of the form. Raises NotFound."""
    ask.query = {**ask.query, "topic": topic}
    found = await message_of(ask)
    if found is None:
        raise NotFound(Text("There is no message {id} here.", id=ask.path["id"][:64]))
    return found


def _location(ask: Ask, message: StoredMessage) -> str:
    return below(ask, "/c/{}/messages/{}", ask.cluster.name, offset_id_of(message))


async def resend(ask: Ask, given: OfTopic) -> Prepared:
    """Send a stored message to its topic again."""
    message = await _stored(ask, given.topic)
    topic = message.topic
    check_sendable(topic)
    if topic.startswith(DLQ_TOPIC_PREFIX):
        raise Invalid(Text("This is a dead letter: resend it on the page of its group."))
    plan = Plan(
        title=Text("Send the message to {topic} again", topic=topic),
        rows=(PlanRow(subject=topic, what=Text("Message"), after=id_of(message)),),
        warnings=await _receivers(ask, topic) if not topic.startswith(RETRY_TOPIC_PREFIX) else (),
        button=Text("Send again"),
    )

    async def execute() -> Done:
        sent = await resend_stored(ask.cluster.admin, message)
        place = f"{sent.broker_name}/{sent.queue_id}@{sent.queue_offset}"
        return Done(
            subject=f"{topic} {id_of(message)}",
            notice=Text("Sent to {place}: {status}.", place=place, status=sent.status),
            location=_location(ask, message), after={"position": place},
        )  # fmt: skip

    return Prepared(plan, execute)


# -- one member ------------------------------------------------------------------------------------


async def consume(ask: Ask, given: ConsumeAgain) -> Prepared:
    """Have one member of a group consume the message now; offsets do not move."""
    message = await _stored(ask, given.topic)
    if not ask.scope.sees(given.group):
        raise NotFound(Text("There is no group {name}.", name=given.group[:80]))
    plan = Plan(
        title=Text("Consume the message again at {client}", client=given.client),
        rows=(
            PlanRow(
                subject=f"{given.group}, {given.client}", what=Text("Message"), after=id_of(message)
            ),
        ),
        warnings=(Text("The member processes the message once more; offsets do not move."),),
        button=Text("Consume again"),
    )

    async def execute() -> Done:
        try:
            result = await push_message(ask.cluster.admin, given.group, given.client, message)
        except (TargetError, RequestError) as e:
            raise Conflict(Text("{client} did not consume it: {why}",
                                client=given.client, why=str(e))) from e  # fmt: skip
        if result.result not in CONSUMED:
            why = " ".join(each for each in (result.result, result.remark) if each)
            raise Conflict(Text("{client} did not consume it: {why}",
                                client=given.client, why=why[:500]))  # fmt: skip
        return Done(
            subject=f"{given.group} {given.client} {id_of(message)}",
            notice=Text("{client} has consumed it in {ms} ms.",
                        client=given.client, ms=result.took_ms),
            location=_location(ask, message), after=result,
        )  # fmt: skip

    return Prepared(plan, execute)


# -- timed messages --------------------------------------------------------------------------------


async def recall(ask: Ask, given: OfTopic) -> Prepared:
    """Cancel a timed message that is not delivered yet."""
    topic, message_id = given.topic, ask.path["id"]
    if not topic or not ask.scope.sees(topic):
        raise NotFound(Text("There is no message {id} here.", id=message_id[:64]))
    messages = ask.cluster.admin.messages
    try:
        waiting = await bounded(messages.find_scheduled(topic, message_id))
    except TianzhouError as e:
        raise Conflict(Text("It cannot be cancelled: {why}", why=str(e))) from e
    if waiting.is_cancelled:
        raise Conflict(Text("The message {id} is cancelled already.", id=message_id))
    plan = Plan(
        title=Text("Cancel the timed message {id}", id=message_id),
        rows=(PlanRow(subject=topic, what=Text("Message"), before=message_id, after=None),),
        warnings=(Text("It will never be delivered."),),
        is_dangerous=True,
        button=Text("Cancel the message"),
    )

    async def execute() -> Done:
        try:
            await messages.recall(topic, waiting)
        except RequestError as e:
            raise Conflict(Text("It cannot be cancelled: {why}", why=str(e))) from e
        return Done(
            subject=f"{topic} {message_id}",
            notice=Text("The message {id} is cancelled.", id=message_id),
            location=below(ask, "/c/{}/messages", ask.cluster.name, topic=topic),
            before={"deliver_ms": waiting.deliver_ms, "broker": waiting.broker.name},
        )  # fmt: skip

    return Prepared(plan, execute)
