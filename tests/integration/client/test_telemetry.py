"""OpenTelemetry: spans and metrics of sends and handlers, where it is installed."""

import asyncio
import importlib
import sys
from typing import Any

import pytest
from tests.unit.client.test_message import stored

from tianzhou.client import (
    ClientSettings,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    QueueReader,
    ReceivedMessage,
)
from tianzhou.client.observe.telemetry import Telemetry
from tianzhou.errors import ConfigError, MessageRefused
from tianzhou.testing import Cluster


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(ConfigError, match="opentelemetry-api"):
        Producer("g", namesrv="x:1", telemetry=True)
    Producer("g", namesrv="x:1")


class Watched:
    """The exporters of spans and metrics of this process."""

    def __init__(self) -> None:
        def module(name: str) -> Any:  # noqa: ANN401 - untyped where it is not installed
            return importlib.import_module(f"opentelemetry.{name}")

        exported = module("sdk.trace.export.in_memory_span_exporter").InMemorySpanExporter()
        provider = module("sdk.trace").TracerProvider()
        provider.add_span_processor(module("sdk.trace.export").SimpleSpanProcessor(exported))
        module("trace").set_tracer_provider(provider)
        self._spans: Any = exported
        self._reader: Any = module("sdk.metrics.export").InMemoryMetricReader()
        module("metrics").set_meter_provider(
            module("sdk.metrics").MeterProvider(metric_readers=[self._reader])
        )

    def spans(self) -> list[Any]:
        found = list(self._spans.get_finished_spans())
        self._spans.clear()
        return found

    def total(self, name: str) -> float:
        data = self._reader.get_metrics_data()
        points = [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]
        return float(sum(point.value for point in points))


@pytest.fixture(scope="module")
def watched() -> Watched:
    pytest.importorskip("opentelemetry.sdk.trace")
    return Watched()


async def test_spans_and_metrics(watched: Watched) -> None:
    with Cluster() as cluster:
        async with Producer("g", namesrv=cluster.namesrv_address, telemetry=True) as producer:
            result = await producer.send("Observed", b"12345")
            (span,) = watched.spans()
            assert span.name == "send Observed"
            assert span.attributes["messaging.message.id"] == result.msg_id
            assert span.attributes["messaging.message.body.size"] == 5
            await producer.send_many([Message("Observed", b"1"), Message("Observed", b"2")])
            one, two, sent = watched.spans()
            assert [one.name, two.name, sent.name] == ["create Observed"] * 2 + ["send Observed"]
            assert {link.context.span_id for link in sent.links} == {
                one.context.span_id, two.context.span_id
            }  # fmt: skip
            await producer.oneway(Message("Observed", b"1"))
            (span,) = watched.spans()
            assert (span.name, span.status.is_ok) == ("send Observed", True)
            with pytest.raises(MessageRefused):
                await producer.send("Observed", b"")
            assert [each.name for each in watched.spans()] == ["send Observed"]
    assert watched.total("messaging.client.sent.messages") == 4


def test_handler_span_is_linked_to_the_send_span(watched: Watched) -> None:
    telemetry = Telemetry("g")
    carriers: list[dict[str, str]] = [{}, {}]
    sends = [telemetry.begin_send(Message("T", b"x"), carrier) for carrier in carriers]
    messages = [ReceivedMessage(stored(properties=carrier)) for carrier in carriers]
    with telemetry.processing("T", messages[:1]):
        pass
    with telemetry.processing("T", messages):
        pass
    one, several = watched.spans()
    assert one.parent.span_id == sends[0].get_span_context().span_id
    assert {link.context.span_id for link in several.links} == {
        send.get_span_context().span_id for send in sends
    }
    assert watched.total("messaging.client.consumed.messages") == 3


async def test_a_consumer_of_a_cluster(watched: Watched) -> None:
    got = asyncio.Event()
    with Cluster(topics={"Seen": 1}) as cluster:
        own = ClientSettings(namesrv=cluster.namesrv_address, telemetry=True)
        consumer = PushConsumer("seers", settings=own)

        @consumer.handler("Seen")
        async def see(message: ReceivedMessage) -> None:
            assert message.body == b"x"
            got.set()

        async with Producer("g", settings=own) as producer, consumer:
            await producer.send("Seen", b"x")
            await asyncio.wait_for(got.wait(), 90)
    sent, processed = sorted(watched.spans(), key=lambda span: span.start_time)
    assert (sent.name, processed.name) == ("send Seen", "process Seen")
    assert processed.parent.span_id == sent.context.span_id


@pytest.mark.parametrize("way", ["lite pull", "reader", "stream"])
async def test_polled_messages(watched: Watched, way: str) -> None:
    with Cluster(topics={"Asked": 1}) as cluster:
        own = ClientSettings(namesrv=cluster.namesrv_address, telemetry=True)
        async with Producer("g", settings=own, linger_ms=1) as producer:
            futures = [await producer.submit(Message("Asked", b"x")) for _ in range(2)]
            result, _ = await asyncio.gather(*futures)
        sends = watched.spans()
        before = watched.total("messaging.client.consumed.messages")
        if way == "lite pull":
            async with LitePullConsumer("askers", settings=own, start="first") as consumer:
                await consumer.subscribe("Asked")
                assert len(await consumer.poll(20_000)) == 2
        elif way == "reader":
            async with QueueReader("askers", settings=own) as reader:
                assert len((await reader.pull(result.queue, 0)).messages) == 2
        else:
            stream = PushConsumer("askers", settings=own, start="first")
            stream.subscribe("Asked")
            async with stream:
                got = [await asyncio.wait_for(anext(aiter(stream)), 90) for _ in range(2)]
                await stream.ack(got[0])
        created = {span.context.span_id for span in sends if span.name == "create Asked"}
        assert len(created) == 2
        assert len([span for span in sends if span.name == "send Asked"]) == 1
        spans = watched.spans()
        if way == "stream":
            # One was acknowledged, the other one was open when the consumer was closed.
            assert [span.name for span in spans] == ["process Asked"] * 2
            assert {span.parent.span_id for span in spans} == created
            assert sorted(span.status.is_ok for span in spans) == [False, True]
        else:
            (span,) = spans
            assert span.name == "receive Asked"
            assert {link.context.span_id for link in span.links} == created
            assert span.attributes["messaging.batch.message_count"] == 2
        assert watched.total("messaging.client.consumed.messages") - before == 2
