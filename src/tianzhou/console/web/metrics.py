"""The console's own metrics, for Prometheus: requests by route, and how fresh its clusters are."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

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
        self._clusters = Gauge(
            "tianzhou_console_clusters", "Clusters that the console shows", registry=self._registry
        )

    def observe(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request; `route` is the path with its names, so that there are few."""
        known = method if method in ("GET", "HEAD", "POST") else "other"
        self._requests.labels(route or "other", known, str(status)).inc()
        self._seconds.labels(route or "other").observe(seconds)

    def text(self, clusters: int) -> bytes:
        """The page that Prometheus reads."""
        self._clusters.set(clusters)
        return generate_latest(self._registry)
