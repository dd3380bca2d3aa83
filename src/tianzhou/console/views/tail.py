"""Following a topic: the page, and the stream of its messages."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import msgspec
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tianzhou.console.messages import tailing
from tianzhou.console.messages.searching import containing
from tianzhou.console.text import Text
from tianzhou.console.views.messages import topic_in
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.refusals import NotFound, Refusal
from tianzhou.console.web.slots import TAIL_S
from tianzhou.errors import TargetError
from tianzhou.protocol.filter import SUBSCRIBE_ALL

_FILTER_MAX = 200


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """A page that shows new messages of a topic."""

    topic: str
    tag: str
    text: str
    queues: int
    rate: int
    """Messages a second that are shown; the others are counted."""
    length_s: int


async def tail(ask: Ask) -> Tail:
    """The page; its script opens the stream."""
    topic = topic_in(ask)
    try:
        queues = await ask.cluster.admin.messages.read_queues(topic)
    except TargetError as e:
        raise NotFound(Text("There is no topic {name}.", name=topic)) from e
    return Tail(
        topic=topic, tag=ask.query.get("tag", "").strip()[:_FILTER_MAX],
        text=ask.query.get("text", "")[:_FILTER_MAX], queues=len(queues), rate=tailing.RATE,
        length_s=round(TAIL_S),
    )  # fmt: skip


async def tail_stream(ask: Ask) -> Response:
    """New messages as server-sent events, for 2 minutes at most."""
    topic = topic_in(ask)
    admin = ask.cluster.admin
    try:
        queues = await admin.messages.read_queues(topic)
    except TargetError as e:
        raise NotFound(Text("There is no topic {name}.", name=topic)) from e
    if len(queues) > tailing.QUEUES_MAX:
        text = Text("The topic has {n} queues; one of at most {most} can be followed.",
                    n=len(queues), most=tailing.QUEUES_MAX)  # fmt: skip
        raise Refusal(text)
    tags = ask.query.get("tag", "").strip()[:_FILTER_MAX] or SUBSCRIBE_ALL
    matches = containing(ask.query.get("text", "")[:_FILTER_MAX])
    person, tails = ask.person.login, ask.console.tails
    replaced = tails.enter(person)
    arriving = tailing.events(admin, queues, replaced, tags=tags, matches=matches)

    async def stream() -> AsyncIterator[bytes]:
        try:
            async with aclosing(arriving) as found:
                async for each in found:
                    yield each
        finally:
            tails.leave(person, replaced)

    return _Stream(stream(), lambda: tails.leave(person, replaced))


class _Stream(StreamingResponse):
    """A stream that gives its slot back also if it is never read."""

    def __init__(self, content: AsyncIterator[bytes], closed: Callable[[], None]) -> None:
        super().__init__(
            content, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
        )
        self._closed = closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._closed()
