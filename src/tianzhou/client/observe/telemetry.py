"""OpenTelemetry, for programs that have it and ask for it (`telemetry=True`).

Only `opentelemetry-api` is needed here; where spans and metrics go is the program's set-up. Names
follow OpenTelemetry's conventions for messaging.

    spans    "send TOPIC" for a message, and "process TOPIC" for the call of a handler or the turn
             of a stream, tied together by `traceparent` among the message's properties; where
             several travel together, each message has a span "create TOPIC", and the "send TOPIC"
             of the batch is linked to them; "receive TOPIC" for messages that were asked for
             (`poll`, `pull`, `receive`), linked to their sends
    metrics  messaging.client.sent.messages, messaging.client.consumed.messages,
             messaging.client.operation.duration (seconds)
"""

import asyncio
import importlib
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from tianzhou.client.message import Message, ReceivedMessage
from tianzhou.client.sending.send_request import SendResult
from tianzhou.client.settings import ClientSettings
from tianzhou.errors import ConfigError

_NAME = "tianzhou.client"
_SYSTEM = "rocketmq"

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

    def begin_send(self, topic: str, size_bytes: int, carrier: dict[str, str]) -> Span:
        """A span for a message; what ties the consumer's span to it goes into `carrier`."""
        span = self._tracer.start_span(
            f"send {topic}",
            kind=self._trace.SpanKind.PRODUCER,
            attributes={
                **self._attributes(topic, "send"),
                "messaging.message.body.size": size_bytes,
            },
        )
        self._propagate.inject(carrier, context=self._trace.set_span_in_context(span))
        return span

    def end_send(
        self, span: Span, topic: str, began_s: float, done: asyncio.Future[SendResult]
    ) -> None:
        """The send has ended, well or not."""
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        attributes = self._attributes(topic, "send")
        if error is None:
            result = done.result()
            span.set_attribute("messaging.message.id", result.msg_id)
            span.set_attribute("messaging.destination.partition.id", str(result.queue.queue_id))
        else:
            attributes["error.type"] = type(error).__name__
            self._failed(span, error)
        span.end()
        self._sent.add(1, attributes)
        self._duration.record(time.monotonic() - began_s, attributes)

    @contextmanager
    def sending_oneway(
        self, topic: str, size_bytes: int, carrier: dict[str, str]
    ) -> Generator[Span]:
        """A span around a send that gets no answer."""
        span = self.begin_send(topic, size_bytes, carrier)
        with self._measured(span, topic, "send", self._sent, 1):
            yield span

    def created(self, message: Message) -> Message:
        """A message that shares a batch, with what ties its consumer to the span it gets here."""
        topic, carrier = message.topic, dict[str, str]()
        span = self._tracer.start_span(
            f"create {topic}",
            kind=self._trace.SpanKind.PRODUCER,
            attributes={
                **self._attributes(topic, "create"),
                "messaging.message.body.size": len(message.payload),
            },
        )
        self._propagate.inject(carrier, context=self._trace.set_span_in_context(span))
        span.end()
        return msgspec.structs.replace(message, properties={**message.properties, **carrier})

    @contextmanager
    def sending_batch(self, messages: Sequence[Message]) -> Generator[Span]:
        """A span around the request that carries messages."""
        topic, number = messages[0].topic, len(messages)
        _, links = self._origins(message.properties for message in messages)
        span = self._tracer.start_span(
            f"send {topic}",
            kind=self._trace.SpanKind.CLIENT,
            links=links,
            attributes={
                **self._attributes(topic, "send"), "messaging.batch.message_count": number
            },
        )  # fmt: skip
        with self._measured(span, topic, "send", self._sent, number):
            yield span

    @contextmanager
    def _measured(
        self, span: Span, topic: str, operation: str, counter: Counter, number: int
    ) -> Generator[None]:
        """Ends a span with what becomes of the block, counts it and takes its time."""
        attributes = self._attributes(topic, operation)
        began_s = time.monotonic()
        try:
            yield
        except BaseException as error:
            attributes["error.type"] = type(error).__name__
            self._failed(span, error)
            raise
        finally:
            span.end()
            counter.add(number, attributes)
            self._duration.record(time.monotonic() - began_s, attributes)

    def _failed(self, span: Span, error: BaseException) -> None:
        span.record_exception(error)
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, str(error)))

    # -- consuming ---------------------------------------------------------------------------------

    @contextmanager
    def processing(self, topic: str, messages: Sequence[ReceivedMessage]) -> Generator[Span]:
        """A span around the call of a handler.

        One message's span is the child of its send; those of several are linked to it.
        """
        contexts, links = self._origins(message.properties for message in messages)
        attributes = self._attributes(topic, "process")
        began_s = time.monotonic()
        with self._tracer.start_as_current_span(
            f"process {topic}",
            context=contexts[0] if len(contexts) == 1 else None,
            kind=self._trace.SpanKind.CONSUMER,
            links=links if len(contexts) > 1 else None,
            attributes={**attributes, "messaging.batch.message_count": len(messages)},
        ) as span:
            try:
                yield span
            finally:
                self._consumed.add(len(messages), attributes)
                self._duration.record(time.monotonic() - began_s, attributes)

    def begin_processing(self, message: ReceivedMessage) -> tuple[Span, float]:
        """A message of a stream was given out; `end_processing` gets what this returns."""
        contexts, _ = self._origins((message.properties,))
        span = self._tracer.start_span(
            f"process {message.topic}",
            context=contexts[0],
            kind=self._trace.SpanKind.CONSUMER,
            attributes=self._attributes(message.topic, "process"),
        )
        return span, time.monotonic()

    def end_processing(self, turn: tuple[Span, float], topic: str, *, done: bool) -> None:
        """The program is done with the message, or wants it again."""
        span, began_s = turn
        attributes = self._attributes(topic, "process")
        if not done:
            attributes["error.type"] = "retry"
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, "wanted again"))
        span.end()
        self._consumed.add(1, attributes)
        self._duration.record(time.monotonic() - began_s, attributes)

    def received(self, messages: Sequence[ReceivedMessage], began_s: float) -> None:
        """Messages came that were asked for at a moment of the monotonic clock."""
        took_s = time.monotonic() - began_s
        topic = messages[0].topic
        _, links = self._origins(message.properties for message in messages)
        attributes = self._attributes(topic, "receive")
        self._tracer.start_span(
            f"receive {topic}",
            kind=self._trace.SpanKind.CONSUMER,
            links=links,
            start_time=time.time_ns() - round(took_s * 1e9),
            attributes={**attributes, "messaging.batch.message_count": len(messages)},
        ).end()
        self._consumed.add(len(messages), attributes)
        self._duration.record(took_s, attributes)

    def _origins(self, carriers: Iterable[Mapping[str, str]]) -> tuple[list[Context], list[Link]]:
        """The contexts that messages were sent in, and links to those that there are."""
        contexts = [self._propagate.extract(carrier) for carrier in carriers]
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
