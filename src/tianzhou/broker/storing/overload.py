"""Refusing sends while the broker cannot keep up, with the figure that decided it.

Two things can pile up: sends that wait for the disk, and requests behind an append that the
operating system held up. A producer that is told SYSTEM_BUSY tries another broker at once, which is
better for it than to wait here.
"""

from tianzhou.broker.config import BrokerConfig
from tianzhou.errors import RequestError
from tianzhou.protocol.codes import ResponseCode


class SendGate:
    """Open while sends can be taken."""

    def __init__(self) -> None:
        self._refused_until_ms = 0
        self._stall_ms = 0
        self.refused_count = 0

    def check(self, config: BrokerConfig, now_ms: int, waiting_count: int) -> None:
        """Raises RequestError with SYSTEM_BUSY if a send must be refused now."""
        if waiting_count >= config.send_thread_pool_queue_capacity:
            self._refuse(
                f"{waiting_count} sends wait for the disk, "
                f"sendThreadPoolQueueCapacity is {config.send_thread_pool_queue_capacity}"
            )
        if now_ms < self._refused_until_ms and config.broker_fast_failure_enable:
            self._refuse(
                f"storing a message took {self._stall_ms} ms, "
                f"osPageCacheBusyTimeOutMills is {config.os_page_cache_busy_time_out_mills}; "
                f"sends are taken again in {self._refused_until_ms - now_ms} ms"
            )

    @property
    def was_slow(self) -> bool:
        """Whether an append was ever held up; before that, no time refuses a send."""
        return self._refused_until_ms > 0

    def room(self, config: BrokerConfig, now_ms: int, waiting_count: int) -> int:
        """How many sends could be taken now, of as many as come at once; 0 if `check` would refuse.

        Does not count as a refusal.
        """
        if now_ms < self._refused_until_ms and config.broker_fast_failure_enable:
            return 0
        return max(config.send_thread_pool_queue_capacity - waiting_count, 0)

    def note_append(self, config: BrokerConfig, started_ms: int, ended_ms: int) -> None:
        """An append took so long; if it was held up, what queued behind it is refused."""
        took_ms = ended_ms - started_ms
        if took_ms >= config.os_page_cache_busy_time_out_mills:
            self._stall_ms = took_ms
            self._refused_until_ms = ended_ms + config.wait_time_mills_in_send_queue

    def _refuse(self, cause: str) -> None:
        self.refused_count += 1
        raise RequestError(ResponseCode.SYSTEM_BUSY, f"broker busy: {cause}")
