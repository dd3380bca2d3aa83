"""How fast a consumer pulls and consumes, per topic, over the last minute.

Each pull and each handler call is counted in a ten-second bucket; a rate is the sum of the last six
buckets. `mqadmin consumerStatus` and consoles show these rates.
"""

from dataclasses import dataclass, field

from tianzhou.protocol.bodies.clients import ConsumeStatus

_BUCKET_MS = 10_000
_BUCKET_COUNT = 6
_WINDOW_S = _BUCKET_MS * _BUCKET_COUNT / 1000
_TOPICS_MAX = 10_000
"""Brokers name the topics of messages; beyond so many, counting begins anew."""


@dataclass(slots=True)
class _Bucket:
    number: int = -1
    pull_count: int = 0
    pulled_count: int = 0
    pull_ms: int = 0
    call_count: int = 0
    done_count: int = 0
    failed_count: int = 0
    consume_ms: int = 0


@dataclass(slots=True)
class _Topic:
    buckets: list[_Bucket] = field(
        default_factory=lambda: [_Bucket() for _ in range(_BUCKET_COUNT)]
    )
    failed_count: int = 0

    def bucket(self, now_ms: int) -> _Bucket:
        number = now_ms // _BUCKET_MS
        bucket = self.buckets[number % _BUCKET_COUNT]
        if bucket.number != number:
            bucket = self.buckets[number % _BUCKET_COUNT] = _Bucket(number)
        return bucket


class Rates:
    """Counters by topic."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}

    def _topic(self, topic: str) -> _Topic:
        found = self._topics.get(topic)
        if found is None:
            if len(self._topics) >= _TOPICS_MAX:
                self._topics.clear()
            found = self._topics[topic] = _Topic()
        return found

    def pulled(self, topic: str, message_count: int, started_ms: int, now_ms: int) -> None:
        """A pull brought messages."""
        bucket = self._topic(topic).bucket(now_ms)
        bucket.pull_count += 1
        bucket.pulled_count += message_count
        bucket.pull_ms += now_ms - started_ms

    def consumed(
        self, topic: str, done_count: int, failed_count: int, started_ms: int, now_ms: int
    ) -> None:
        """A handler ended."""
        counters = self._topic(topic)
        counters.failed_count += failed_count
        bucket = counters.bucket(now_ms)
        bucket.call_count += 1
        bucket.done_count += done_count
        bucket.failed_count += failed_count
        bucket.consume_ms += now_ms - started_ms

    def status(self, topic: str, now_ms: int) -> ConsumeStatus:
        """Rates of the last minute; failures since the start."""
        counters = self._topic(topic)
        newest = now_ms // _BUCKET_MS
        buckets = [
            each for each in counters.buckets if newest - _BUCKET_COUNT < each.number <= newest
        ]
        pulls = sum(each.pull_count for each in buckets)
        calls = sum(each.call_count for each in buckets)
        return ConsumeStatus(
            pull_ms=sum(each.pull_ms for each in buckets) / max(pulls, 1),
            pull_tps=sum(each.pulled_count for each in buckets) / _WINDOW_S,
            consume_ms=sum(each.consume_ms for each in buckets) / max(calls, 1),
            consume_ok_tps=sum(each.done_count for each in buckets) / _WINDOW_S,
            consume_failed_tps=sum(each.failed_count for each in buckets) / _WINDOW_S,
            consume_failed_count=counters.failed_count,
        )
