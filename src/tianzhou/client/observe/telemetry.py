"""OpenTelemetry spans and metrics, switched on by `telemetry=True`.

Only `opentelemetry-api` is needed here; the program configures the exporters. Names follow
OpenTelemetry's conventions for messaging.

    spans    "send TOPIC" for a message, and "process TOPIC" for the call of a handler or a message
             of a stream, linked by the property `traceparent` of the message; in a batch each
             message has a span "create TOPIC", and the "send TOPIC" of the batch is linked to them;
             "receive TOPIC" for the results of `poll`, `pull` and `receive`, linked to their sends
    metrics  messaging.client.sent.messages, messaging.client.consumed.messages,
             messaging.client.operation.duration (seconds)
"""

import asyncio
import importlib
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec

from tianzhou.client.message import Message, ReceivedMessage
from tianzhou.client.sending.send_request import SendResult
from tianzhou.client.settings import ClientSettings
from tianzhou.errors import ConfigError

_NAME = "tianzhou.client"
_SYSTEM = "rocketmq"
_BATCH_COUNT = "messaging.batch.message_count"

Span = Any
"""A span of OpenTelemetry, whose types are not ours to require."""
Link = Any
Context = Any
Counter = Any


class Telemetry:
    """Spans and metrics of one producer or consumer."""

    def __init__(self, group: str) -> None:
        """Raises ConfigError if OpenTelemetry is not installed."""
        try:
            self._trace: Any = importlib.import_module("opentelemetry.trace")
            self._propagate: Any = importlib.import_module("opentelemetry.propagate")
            metrics: Any = importlib.import_module("opentelemetry.metrics")
        except ImportError as e:
            raise ConfigError(
                "telemetry=True needs OpenTelemetry: install opentelemetry-api and an SDK"
            ) from e
        self._group = group
        self._tracer: Any = self._trace.get_tracer(_NAME)
        meter: Any = metrics.get_meter(_NAME)
        self._sent: Any = meter.create_counter("messaging.client.sent.messages", "{message}")
        self._consumed: Any = meter.create_counter(
            "messaging.client.consumed.messages", "{message}"
        )
        self._duration: Any = meter.create_histogram("messaging.client.operation.duration", "s")

    # -- sending -----------------------------------------------------------------------------------

    def begin_send(
        self, message: Message, carrier: dict[str, str], operation: str = "send"
    ) -> Span:
        """The span of a message; `carrier` gets the properties that link consumers to it."""
        span = self._start_span(
            operation, message.topic, self._trace.SpanKind.PRODUCER,
            {"messaging.message.body.size": len(message.payload)},
        )  # fmt: skip
        self._propagate.inject(carrier, context=self._trace.set_span_in_context(span))
        return span

    def end_send(
        self, span: Span, topic: str, began_s: float, done: asyncio.Future[SendResult]
    ) -> None:
        """The send has succeeded or failed."""
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if error is None:
            result = done.result()
            span.set_attribute("messaging.message.id", result.msg_id)
            span.set_attribute("messaging.destination.partition.id", str(result.queue.queue_id))
        self._end_send(span, topic, began_s, error)

    def created(self, message: Message) -> Message:
        """A message of a batch with a span of its own, and the properties that link to it."""
        carrier: dict[str, str] = {}
        self.begin_send(message, carrier, "create").end()
        return msgspec.structs.replace(message, properties={**message.properties, **carrier})

    def sending_oneway(
        self, message: Message, carrier: dict[str, str]
    ) -> AbstractContextManager[None]:
        """A span around a send without a response."""
        return self._sending(self.begin_send(message, carrier), message.topic, 1)

    def sending_batch(self, messages: Sequence[Message]) -> AbstractContextManager[None]:
        """A span around the request that carries messages."""
        topic, count = messages[0].topic, len(messages)
        span = self._start_span(
            "send", topic, self._trace.SpanKind.CLIENT, {_BATCH_COUNT: count},
            links=self._origins(messages)[1],
        )  # fmt: skip
        return self._sending(span, topic, count)

    @contextmanager
    def _sending(self, span: Span, topic: str, count: int) -> Generator[None]:
        began_s = time.monotonic()
        try:
            yield
        except BaseException as error:
            self._end_send(span, topic, began_s, error, count)
            raise
        self._end_send(span, topic, began_s, None, count)

    def _end_send(
        self, span: Span, topic: str, began_s: float, error: BaseException | None, count: int = 1
    ) -> None:
        attributes = self._attributes(topic, "send")
        if error is not None:
            attributes["error.type"] = type(error).__name__
            span.record_exception(error)
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, str(error)))
        span.end()
        self._record(self._sent, count, attributes, began_s)

    # -- consuming ---------------------------------------------------------------------------------

    @contextmanager
    def processing(self, topic: str, messages: Sequence[ReceivedMessage]) -> Generator[Span]:
        """A span around the call of a handler.

        One message's span is the child of its send; those of several are linked to it.
        """
        contexts, links = self._origins(messages)
        attributes = self._attributes(topic, "process")
        began_s = time.monotonic()
        with self._tracer.start_as_current_span(
            f"process {topic}",
            context=contexts[0] if len(contexts) == 1 else None,
            kind=self._trace.SpanKind.CONSUMER,
            links=links if len(contexts) > 1 else None,
            attributes={**attributes, _BATCH_COUNT: len(messages)},
        ) as span:
            try:
                yield span
            finally:
                self._record(self._consumed, len(messages), attributes, began_s)

    def begin_processing(self, message: ReceivedMessage) -> tuple[Span, float]:
        """A stream has yielded a message; `end_processing` gets what this returns."""
        contexts, _ = self._origins((message,))
        span = self._start_span(
            "process", message.topic, self._trace.SpanKind.CONSUMER, context=contexts[0]
        )
        return span, time.monotonic()

    def end_processing(self, begun: tuple[Span, float], topic: str, *, done: bool) -> None:
        """The program has acknowledged the message, or asked for its redelivery."""
        span, began_s = begun
        attributes = self._attributes(topic, "process")
        if not done:
            attributes["error.type"] = "retry"
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, "wanted again"))
        span.end()
        self._record(self._consumed, 1, attributes, began_s)

    def received(self, messages: Sequence[ReceivedMessage], began_s: float) -> None:
        """Messages have arrived that were requested at a time of the monotonic clock."""
        topic, count = messages[0].topic, len(messages)
        took_s = time.monotonic() - began_s
        self._start_span(
            "receive", topic, self._trace.SpanKind.CONSUMER, {_BATCH_COUNT: count},
            links=self._origins(messages)[1], start_time=time.time_ns() - round(took_s * 1e9),
        ).end()  # fmt: skip
        self._record(self._consumed, count, self._attributes(topic, "receive"), began_s)

    # -- inside ------------------------------------------------------------------------------------

    def _start_span(
        self,
        operation: str,
        topic: str,
        kind: Any,  # noqa: ANN401 - a SpanKind
        extra: Mapping[str, object] = {},
        **options: Any,  # noqa: ANN401 - those of OpenTelemetry
    ) -> Span:
        attributes = {**self._attributes(topic, operation), **extra}
        return self._tracer.start_span(
            f"{operation} {topic}", kind=kind, attributes=attributes, **options
        )

    def _record(
        self, counter: Counter, count: int, attributes: dict[str, str], began_s: float
    ) -> None:
        counter.add(count, attributes)
        self._duration.record(time.monotonic() - began_s, attributes)

    def _origins(
        self, messages: Sequence[Message | ReceivedMessage]
    ) -> tuple[list[Context], list[Link]]:
        """The contexts that messages were sent in, and links to those that are valid."""
        contexts = [self._propagate.extract(message.properties) for message in messages]
        origins = [self._trace.get_current_span(each).get_span_context() for each in contexts]
        return contexts, [self._trace.Link(each) for each in origins if each.is_valid]

    def _attributes(self, topic: str, operation: str) -> dict[str, str]:
        return {
            "messaging.system": _SYSTEM,
            "messaging.operation.name": operation,
            "messaging.destination.name": topic,
            "messaging.consumer.group.name": self._group,
        }


def telemetry_of(settings: ClientSettings, group: str) -> Telemetry | None:
    """The telemetry of a client, None unless the settings ask for it. Raises ConfigError."""
    return Telemetry(group) if settings.telemetry else None
