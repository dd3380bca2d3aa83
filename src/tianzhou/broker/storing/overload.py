"""Rejects sends while the broker is overloaded, with the value that decided it.

Two kinds of requests can accumulate: sends that wait for the disk or slaves, and requests behind
an append that the operating system blocked. A producer that receives SYSTEM_BUSY tries another
broker at once, which is better than to wait here.
"""

from tianzhou.broker.config import BrokerConfig
from tianzhou.errors import RequestError
from tianzhou.protocol.codes import ResponseCode


class SendGate:
    """Decides whether sends are accepted."""

    def __init__(self) -> None:
        self._refused_until_ms = 0
        self._stall_ms = 0
        self.refused_count = 0

    def check(self, config: BrokerConfig, now_ms: int, waiting_count: int) -> None:
        """Raises RequestError with SYSTEM_BUSY if a send must be rejected."""
        if waiting_count >= config.send_thread_pool_queue_capacity:
            self._refuse(
                f"{waiting_count} sends wait for the disk or a slave, "
                f"sendThreadPoolQueueCapacity is {config.send_thread_pool_queue_capacity}"
            )
        if now_ms < self._refused_until_ms and config.broker_fast_failure_enable:
            self._refuse(
                f"storing a message took {self._stall_ms} ms, "
                f"osPageCacheBusyTimeOutMills is {config.os_page_cache_busy_time_out_mills}; "
                f"sends are accepted again in {self._refused_until_ms - now_ms} ms"
            )

    @property
    def was_slow(self) -> bool:
        """Whether an append was ever blocked; if not, `check` does not depend on the time."""
        return self._refused_until_ms > 0

    def capacity(self, config: BrokerConfig, now_ms: int, waiting_count: int) -> int:
        """How many sends could be accepted now; 0 if `check` would reject them.

        Does not count as a rejection.
        """
        if now_ms < self._refused_until_ms and config.broker_fast_failure_enable:
            return 0
        return max(config.send_thread_pool_queue_capacity - waiting_count, 0)

    def note_append(self, config: BrokerConfig, started_ms: int, ended_ms: int) -> None:
        """Note the time of an append; if it was blocked, requests queued behind it are rejected."""
        took_ms = ended_ms - started_ms
        if took_ms >= config.os_page_cache_busy_time_out_mills:
            self._stall_ms = took_ms
            self._refused_until_ms = ended_ms + config.wait_time_mills_in_send_queue

    def _refuse(self, cause: str) -> None:
        self.refused_count += 1
        raise RequestError(ResponseCode.SYSTEM_BUSY, f"broker busy: {cause}")
