"""The console's own metrics, for Prometheus: requests by route, and how fresh its clusters are."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tianzhou.console.collect.snapshot import Snapshot

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.3, 1, 3, 10)


class Metrics:
    """Counters of one application."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "tianzhou_console_requests", "Requests", ["route", "method", "status"],
            registry=self._registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "tianzhou_console_request_seconds", "Time of the server for a request", ["route"],
            buckets=_BUCKETS_S, registry=self._registry,
        )  # fmt: skip
        self._fresh = self._gauge("fresh", "1 if the last round is younger than three intervals")
        self._as_of = self._gauge("as_of_seconds", "Time of the last round, since 1970")
        self._round = self._gauge("round_seconds", "How long the last round took")
        self._requests_of = self._gauge("round_requests", "Requests of the last round")
        self._known = self._gauge("brokers_known", "Brokers that are registered or were seen")
        self._answered = self._gauge("brokers_answered", "Brokers that answered in the last round")

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"tianzhou_console_cluster_{name}", text, ["cluster"], registry=self._registry)

    def observe(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request; `route` is the path with its names, so that there are few."""
        known = method if method in ("GET", "HEAD", "POST") else "other"
        self._requests.labels(route or "other", known, str(status)).inc()
        self._seconds.labels(route or "other").observe(seconds)

    def text(self, clusters: Mapping[str, tuple[Snapshot | None, bool]]) -> bytes:
        """The page that Prometheus reads; with the snapshot of each cluster, and if it is fresh."""
        gauges = (
            self._fresh, self._as_of, self._round, self._requests_of, self._known, self._answered
        )  # fmt: skip
        for gauge in gauges:
            gauge.clear()
        for name, (snapshot, is_fresh) in clusters.items():
            self._fresh.labels(name).set(is_fresh)
            if snapshot is not None:
                self._as_of.labels(name).set(snapshot.as_of_ms / 1000)
                self._round.labels(name).set(snapshot.round_ms / 1000)
                self._requests_of.labels(name).set(snapshot.request_count)
                self._known.labels(name).set(snapshot.totals.brokers_known)
                self._answered.labels(name).set(snapshot.totals.brokers_answered)
        return generate_latest(self._registry)
