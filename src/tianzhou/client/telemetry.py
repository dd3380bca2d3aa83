"""OpenTelemetry, for programs that have it and ask for it (`telemetry=True`).

Only `opentelemetry-api` is needed here; where spans and metrics go is the program's set-up. Names
follow OpenTelemetry's conventions for messaging.

    spans    "send TOPIC" (producer) and "process TOPIC" (consumer), tied together by `traceparent`
             among the message's properties; messages in batches have no span of their own
    metrics  messaging.client.sent.messages, messaging.client.consumed.messages,
             messaging.client.operation.duration (seconds)
"""

import asyncio
import importlib
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from tianzhou.client.message import ReceivedMessage
from tianzhou.client.sending import SendResult
from tianzhou.client.settings import ClientSettings
from tianzhou.errors import ConfigError

_NAME = "tianzhou.client"
_SYSTEM = "rocketmq"

Span = Any
"""A span of OpenTelemetry, whose types are not ours to require."""


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
            span.record_exception(error)
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, str(error)))
        span.end()
        self._sent.add(1, attributes)
        self._duration.record(time.monotonic() - began_s, attributes)

    def sent_batch(self, topic: str, number: int, began_s: float) -> None:
        """A batch was stored."""
        attributes = self._attributes(topic, "send")
        self._sent.add(number, attributes)
        self._duration.record(time.monotonic() - began_s, attributes)

    # -- consuming ---------------------------------------------------------------------------------

    @contextmanager
    def processing(self, topic: str, messages: Sequence[ReceivedMessage]) -> Generator[Span]:
        """A span around the call of a handler.

        One message's span is the child of its send; those of several are linked to it.
        """
        contexts = [self._propagate.extract(message.properties) for message in messages]
        spans = [self._trace.get_current_span(context) for context in contexts]
        links = [
            self._trace.Link(span.get_span_context())
            for span in spans
            if span.get_span_context().is_valid
        ]
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
