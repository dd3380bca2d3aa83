"""Messages: finding them by id, key, place and time; one message; sending a test message."""

import asyncio
import re
from collections.abc import Coroutine
from itertools import islice
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response

from tianzhou.admin import Admin
from tianzhou.admin.fanout import BrokerRef, run_limited
from tianzhou.admin.messages import QueueRef
from tianzhou.admin.redelivery import consumption
from tianzhou.console.collect.snapshot import NORMAL
from tianzhou.console.messages import content
from tianzhou.console.messages.content import Body, MessageRow
from tianzhou.console.messages.searching import TIME_S, Searched, Wanted, search, wanted_of
from tianzhou.console.text import Text
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.refusals import NotFound
from tianzhou.errors import FieldError, RequestError, TargetError, TianzhouError
from tianzhou.message import StoredMessage
from tianzhou.protocol import properties
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.records.message_id import decode_offset_id, id_of, offset_id_of
from tianzhou.remoting.address import format_address

T = TypeVar("T")

QUESTION_S = 2.0
"""Time for what a page adds to the message itself."""
BY_KEY_MAX = 64
GROUPS_MAX = 30
"""Groups of which a page shows whether they have consumed a message."""
TOPICS_MAX = 200
_ID = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}")
_PLACE = re.compile(r"(?P<broker>[^\s/]+)/(?P<queue>\d{1,9})@(?P<offset>\d{1,18})")
_TOPIC_MAX = 255


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that were found."""

    rows: tuple[MessageRow, ...]


class Messages(msgspec.Struct, frozen=True, kw_only=True):
    """The page that finds messages."""

    topic: str
    """Empty: none was chosen yet."""
    text: str
    """What the box holds: an id, a key, or a position such as broker-a/0@1200."""
    found: Found
    wanted: Wanted | None
    searched: Searched | None
    """None: found by id, key or position, or nothing was searched."""
    by: str
    """id, key, position, time, or empty."""
    problem: Text | None
    """Why nothing was found, or could be asked."""
    warnings: tuple[str, ...]
    topics: tuple[str, ...]
    """Names to choose from; the first ones."""


class Consumption(msgspec.Struct, frozen=True, kw_only=True):
    """A group of the topic, and whether it has consumed a message."""

    group: str
    is_consumed: bool
    committed: int | None
    members: tuple[str, ...] | None
    """Client ids; None: not known."""


class Scheduled(msgspec.Struct, frozen=True, kw_only=True):
    """A timed message that is not delivered yet."""

    topic: str
    broker: str
    deliver_ms: int
    is_cancelled: bool


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message: where it is, its properties and its body, who has consumed it."""

    id: str
    """As in the address."""
    topic: str
    row: MessageRow | None
    """None: it is not stored in its topic yet."""
    scheduled: Scheduled | None
    place: str
    log_offset: int | None
    born_host: str
    store_host: str
    retries: int
    record_bytes: int
    is_transactional: bool
    properties: tuple[tuple[str, str], ...]
    body: Body | None
    groups: tuple[Consumption, ...] | None
    """None: not known, `groups_problem` says why."""
    groups_problem: str
    previous: str
    next: str
    """Positions of its neighbours in the queue; empty: it is the first."""


class SendTo(msgspec.Struct, frozen=True, kw_only=True):
    """The form for a test message."""

    topic: str
    queues: tuple[str, ...]
    """broker/queue of each queue that accepts messages."""


# -- finding ---------------------------------------------------------------------------------------


async def messages(ask: Ask) -> Messages:
    """Messages by id, key, position, or time and tag."""
    topic = topic_in(ask)
    text = ask.query.get("q", "").strip()[:_TOPIC_MAX]
    # What is wrong in the query is refused before a broker is asked.
    wanted = wanted_of(ask)
    page = Messages(
        topic=topic, text=text, found=Found(rows=()), wanted=wanted, searched=None, by="",
        problem=None, warnings=(), topics=_topics(ask),
    )  # fmt: skip
    if not topic and not (text and _ID.fullmatch(text)):
        needs_topic = Text("Choose the topic: keys and positions belong to one.") if text else None
        return msgspec.structs.replace(page, problem=needs_topic)
    try:
        if text:
            return await _by_text(ask, page)
        queues = await ask.cluster.admin.messages.read_queues(topic)
        found, searched = await search(ask, queues, wanted)
    except TianzhouError as e:
        if "topic" in ask.path and isinstance(e, TargetError) and "there is no topic" in str(e):
            raise NotFound(Text("There is no topic {name}.", name=topic)) from e
        return msgspec.structs.replace(page, problem=Text("{why}", why=str(e)))
    rows = tuple(content.row_of(message, at.broker.name) for at, message in found)
    return msgspec.structs.replace(page, found=Found(rows=rows), searched=searched, by="time")


def _topics(ask: Ask) -> tuple[str, ...]:
    snapshot = ask.cluster.snapshot
    if snapshot is None:
        return ()
    names = (each.name for each in snapshot.topics if each.kind == NORMAL)
    return tuple(islice((name for name in names if ask.scope.sees(name)), TOPICS_MAX))


async def _by_text(ask: Ask, page: Messages) -> Messages:
    admin, topic, text = ask.cluster.admin, page.topic, page.text
    warnings: tuple[str, ...] = ()
    place = _PLACE.fullmatch(text)
    if _ID.fullmatch(text):
        by = "id"
        found = [await bounded(admin.messages.by_any_id(text, topic or None))]
    elif place is not None:
        by = "position"
        queue = await _queue(admin, topic, place["broker"], int(place["queue"]))
        found = [await bounded(admin.messages.at(queue, int(place["offset"])))]
    else:
        by = "key"
        result = await ask.console.searches.run(
            ask.person.login,
            lambda: bounded(admin.messages.by_key(topic, text, max_count=BY_KEY_MAX)),
        )
        found, warnings = list(reversed(result.messages)), tuple(result.warnings)
    names = await _broker_names(admin)
    rows = tuple(
        content.row_of(each, names.get(each.store_host, format_address(*each.store_host)))
        for each in found
        if ask.scope.sees(each.topic)
    )
    problem = None
    if not rows:
        problem = Text("No message of {topic} has the key {key}.", topic=topic, key=text)
    return msgspec.structs.replace(
        page, found=Found(rows=rows), by=by, problem=problem, warnings=warnings
    )


async def bounded(work: Coroutine[Any, Any, T]) -> T:
    """The result within the time of a search. Raises TargetError, TianzhouError."""
    try:
        async with asyncio.timeout(TIME_S):
            return await work
    except TimeoutError as e:
        raise TargetError(f"the brokers did not answer within {TIME_S:g} s") from e


def topic_in(ask: Ask) -> str:
    """The topic in the address or in the query; empty if there is none. Raises NotFound."""
    topic = (ask.path.get("topic") or ask.query.get("topic", "")).strip()[:_TOPIC_MAX]
    if topic and not ask.scope.sees(topic):
        raise NotFound(Text("There is no topic {name}.", name=topic))
    return topic


async def _queue(admin: Admin, topic: str, broker: str, queue_id: int) -> QueueRef:
    for at in await admin.messages.read_queues(topic):
        if at.broker.name == broker and at.queue_id == queue_id:
            return at
    raise TargetError(f"topic {topic} has no queue {queue_id} on {broker}")


async def _broker_names(admin: Admin) -> dict[tuple[str, int], str]:
    """Names of brokers by address, where they are registered by number."""
    names: dict[tuple[str, int], str] = {}
    for at in await admin.clusters.brokers():
        host, _, port = at.address.rpartition(":")
        if port.isdigit():
            names[host.strip("[]"), int(port)] = at.name
    return names


# -- one message -----------------------------------------------------------------------------------


async def message(ask: Ask) -> Message:
    """One message: where it is, its body, who has consumed it."""
    admin, topic = ask.cluster.admin, topic_in(ask)
    found = await message_of(ask)
    if found is None:
        scheduled = await scheduled_of(ask, topic)
        return Message(
            id=ask.path["id"], topic=topic, row=None, scheduled=scheduled, place="",
            log_offset=None, born_host="", store_host="", retries=0, record_bytes=0,
            is_transactional=False, properties=(), body=None, groups=None, groups_problem="",
            previous="", next="",
        )  # fmt: skip
    broker = await broker_of(admin, found)
    groups, problem = await _groups(admin, found, broker)
    name = broker.name if broker is not None else format_address(*found.store_host)
    place = f"{name}/{found.queue_id}@"
    is_reachable = broker is not None
    return Message(
        id=ask.path["id"],
        topic=found.topic,
        row=content.row_of(found, name),
        scheduled=None,
        place=f"{place}{found.queue_offset}",
        log_offset=found.log_offset,
        born_host=format_address(*found.born_host),
        store_host=format_address(*found.store_host),
        retries=found.reconsume_count,
        record_bytes=found.size_bytes,
        is_transactional=properties.TRANSACTION_PREPARED in found.properties,
        properties=tuple(
            (name, content.visible(value)) for name, value in sorted(found.properties.items())
        ),
        body=content.body_in(found, ask.query.get("as", "")),
        groups=groups,
        groups_problem=problem,
        previous=f"{place}{found.queue_offset - 1}" if is_reachable and found.queue_offset else "",
        next=f"{place}{found.queue_offset + 1}" if is_reachable else "",
    )


async def broker_of(admin: Admin, found: StoredMessage) -> BrokerRef | None:
    """The broker that stored a message; None if none is registered at its address any more."""
    try:
        return await admin.clusters.broker_at(found.store_host)
    except TargetError:
        return None


async def message_of(ask: Ask) -> StoredMessage | None:
    """The message in the address; None: it may be a timed one that waits. Raises NotFound."""
    topic, text = topic_in(ask), ask.path["id"]
    missing = Text("There is no message {id} here.", id=text[:64])
    if not _ID.fullmatch(text):
        raise NotFound(missing)
    try:
        found = await bounded(ask.cluster.admin.messages.by_any_id(text, topic or None))
    except (TargetError, FieldError) as e:
        if topic:
            return None
        raise NotFound(Text("{missing} {why}", missing=missing, why=_sentence(str(e)))) from e
    if not ask.scope.sees(found.topic):
        raise NotFound(missing)
    return found


async def scheduled_of(ask: Ask, topic: str) -> Scheduled:
    """The timed message in the address. Raises NotFound."""
    try:
        waiting = await bounded(ask.cluster.admin.messages.find_scheduled(topic, ask.path["id"]))
    except (TargetError, RequestError) as e:
        text = Text("There is no message {id} here.", id=ask.path["id"][:64])
        raise NotFound(Text("{missing} {why}", missing=text, why=_sentence(str(e)))) from e
    return Scheduled(
        topic=topic, broker=waiting.broker.name, deliver_ms=waiting.deliver_ms,
        is_cancelled=waiting.is_cancelled,
    )  # fmt: skip


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


async def _groups(
    admin: Admin, found: StoredMessage, broker: BrokerRef | None
) -> tuple[tuple[Consumption, ...] | None, str]:
    """Who has consumed a message; or None, and why it is not known."""
    if broker is None:
        address = format_address(*found.store_host)
        return None, f"no broker is registered at {address}, which stored the message"

    async def one(group: str) -> tuple[str, ...] | None:
        try:
            online = await admin.groups.connection(broker, group)
        except TianzhouError:
            return None
        if online is None:
            return ()
        return tuple(sorted({each.client_id or "" for each in online.connections}))

    try:
        async with asyncio.timeout(QUESTION_S):
            states = await consumption(admin, found, groups_max=GROUPS_MAX)
            names = list(dict.fromkeys(each.group for each in states))
            members = dict(zip(names, await run_limited(names, one), strict=True))
    except TimeoutError:
        return None, f"the brokers did not answer within {QUESTION_S:g} s"
    except RequestError as e:
        if e.code == ResponseCode.TOPIC_NOT_EXIST:
            return (), ""
        return None, str(e)
    except TianzhouError as e:
        return None, str(e)
    return tuple(
        Consumption(
            group=each.group, is_consumed=each.state == "consumed", committed=each.committed,
            members=members[each.group],
        )
        for each in states
    ), ""  # fmt: skip


async def message_body(ask: Ask) -> Response:
    """The body of a message as a file."""
    found = await message_of(ask)
    if found is None:
        raise NotFound
    whole, _ = content.plain_bytes(found)
    name = re.sub(r"[^0-9A-Za-z_.-]", "_", id_of(found) or offset_id_of(found))[:80]
    return Response(
        whole,
        media_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{name}.bin"'},
    )


def is_offset_id(text: str) -> bool:
    """Whether a text has the form of a broker's id of a message."""
    try:
        decode_offset_id(text)
    except FieldError:
        return False
    return True


# -- sending ---------------------------------------------------------------------------------------


async def send_message(ask: Ask) -> SendTo:
    """The form for a test message."""
    topic = topic_in(ask)
    try:
        queues = await ask.cluster.admin.messages.write_queues(topic)
    except TargetError as e:
        raise NotFound(Text("{why}", why=_sentence(str(e)))) from e
    return SendTo(topic=topic, queues=tuple(f"{at.broker.name}/{at.queue_id}" for at in queues))
