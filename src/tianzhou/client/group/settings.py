"""The settings of consumers, beside those that every client has.

Each has the name and the default of the Java client's setting, as far as those suit Python; the
table in docs/client.md shows both names.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal

from tianzhou.client.group.rebalance import STRATEGIES, Allocate
from tianzhou.client.settings import ClientOptions, ClientSettings, require_positive
from tianzhou.errors import ConfigError

Start = Literal["first", "last"] | datetime
"""Where a group begins in a queue that it never consumed.

RocketMQ's rule comes before it: in a queue whose first message is still there and in memory, as in
every young topic, a new group begins with the first message whatever `start` is. To begin at the
end all the same, give the group its offsets before its first start: `tianzhou offset reset GROUP
TOPIC --to latest`.
"""
"""Where a group begins in a queue that it never consumed."""


class ConsumerOptions(ClientOptions, total=False):
    """The fields of `ConsumerSettings` as keywords."""

    broadcasting: bool
    start: Start
    allocate: str | Allocate
    offsets_dir: str
    pull_batch_size: int
    pull_batch_bytes: int
    pull_interval_ms: int
    pull_suspend_ms: int
    pull_timeout_ms: int
    pull_error_pause_ms: int
    queue_messages_max: int
    queue_mib_max: int
    queue_span_max: int
    topic_messages_max: int
    topic_mib_max: int
    rebalance_ms: int
    close_timeout_ms: int


class PushOptions(ConsumerOptions, total=False):
    """The fields of `PushSettings` as keywords."""

    ordered: bool
    consume_threads: int
    batch_size: int
    max_reconsume_times: int
    consume_timeout_ms: int
    suspend_ms: int
    local_retry_ms: int
    auto_commit: bool
    lock_ms: int


class LitePullOptions(ConsumerOptions, total=False):
    """The fields of `LitePullSettings` as keywords."""

    auto_commit: bool
    poll_timeout_ms: int


class SimpleOptions(ClientOptions, total=False):
    """The fields of `SimpleSettings` as keywords."""

    start: Literal["first", "last"]
    invisible_ms: int
    wait_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings(ClientSettings):
    """What all consumers have in common."""

    # -- the group ---------------------------------------------------------------------------------
    broadcasting: bool = False  # every consumer gets every message, and nothing is tried again
    start: Start = "last"  # in a queue never consumed; see `Start`
    allocate: str | Allocate = "averagely"  # or averagely_by_circle, consistent_hash, a function
    rebalance_ms: int = 20_000  # the division of queues is looked at again
    offsets_dir: str = ""  # offsets of broadcasting consumers; empty: ~/.rocketmq_offsets

    # -- pulling -----------------------------------------------------------------------------------
    pull_batch_size: int = 32  # messages of one pull; brokers have limits of their own
    pull_batch_bytes: int = 256 * 1024  # bytes of one pull, where the broker knows it (5.x)
    pull_interval_ms: int = 0  # pause between pulls of a queue
    pull_suspend_ms: int = 15_000  # a broker holds a pull so long while there is no message
    pull_timeout_ms: int = 30_000
    pull_error_pause_ms: int = 3_000  # longest pause after a failed pull; it begins with 100 ms

    # -- how much is held --------------------------------------------------------------------------
    queue_messages_max: int = 1000  # of one queue
    queue_mib_max: int = 100  # of one queue
    queue_span_max: int = 2000  # between the lowest and the highest offset held of a queue
    topic_messages_max: int = -1  # of all queues together; -1: no such limit
    topic_mib_max: int = -1  # of all queues together; -1: no such limit

    # -- the end -----------------------------------------------------------------------------------
    close_timeout_ms: int = 30_000  # for handlers that are running

    _CONSUMER_AT_LEAST_ONE: ClassVar[tuple[str, ...]] = (
        "rebalance_ms", "pull_batch_size", "pull_batch_bytes", "pull_timeout_ms",
        "pull_error_pause_ms", "queue_messages_max", "queue_mib_max", "queue_span_max",
        "close_timeout_ms",
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        ClientSettings.__post_init__(self)
        require_positive(self, ConsumerSettings._CONSUMER_AT_LEAST_ONE)
        for name in ("topic_messages_max", "topic_mib_max"):
            if getattr(self, name) < 1 and getattr(self, name) != -1:
                raise ConfigError(f"{name} is {getattr(self, name)}, at least 1 or -1 is needed")
        if min(self.pull_interval_ms, self.pull_suspend_ms) < 0:
            raise ConfigError("pull_interval_ms and pull_suspend_ms cannot be negative")
        if self.pull_timeout_ms <= self.pull_suspend_ms:
            raise ConfigError(
                f"pull_timeout_ms is {self.pull_timeout_ms}, it must be above pull_suspend_ms "
                f"({self.pull_suspend_ms})"
            )
        if isinstance(self.start, datetime):
            if self.start.tzinfo is None:
                raise ConfigError("start has no time zone; give an aware datetime")
        elif self.start not in ("first", "last"):
            raise ConfigError(f"start is {self.start!r}; it is first, last or a datetime")
        self.strategy()

    def strategy(self) -> Allocate:
        """The function that divides queues. Raises ConfigError for a name that nobody knows."""
        chosen = self.allocate
        if not isinstance(chosen, str):
            return chosen
        if chosen not in STRATEGIES:
            raise ConfigError(f"allocate is {chosen!r}; known are {', '.join(sorted(STRATEGIES))}")
        return STRATEGIES[chosen]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSettings(ConsumerSettings):
    """Settings of a consumer that calls handlers."""

    ordered: bool = False  # one message of a queue at a time, in their order
    consume_threads: int = 20  # handlers at the same time: threads for sync ones, tasks for async
    batch_size: int = 1  # messages for one call of a batch handler
    max_reconsume_times: int = -1  # then a dead letter; -1: 16 times, ordered without end
    consume_timeout_ms: int = (
        15 * 60 * 1000
    )  # then the message is sent back, whatever becomes of it
    suspend_ms: int = 1_000  # ordered: pause after a failure
    local_retry_ms: int = 5_000  # a message that cannot even be sent back is tried again here
    auto_commit: bool = True  # ordered: False lets handlers say commit or rollback
    lock_ms: int = 20_000  # ordered: locks of queues are renewed

    _PUSH_AT_LEAST_ONE: ClassVar[tuple[str, ...]] = (
        "consume_threads", "batch_size", "consume_timeout_ms", "suspend_ms", "local_retry_ms",
        "lock_ms",
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        ConsumerSettings.__post_init__(self)
        require_positive(self, PushSettings._PUSH_AT_LEAST_ONE)
        if self.max_reconsume_times < -1:
            raise ConfigError(
                f"max_reconsume_times is {self.max_reconsume_times}, at least -1 is needed"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePullSettings(ConsumerSettings):
    """Settings of a consumer that is asked for messages."""

    auto_commit: bool = True  # what was polled is saved every persist_offsets_ms
    poll_timeout_ms: int = 5_000  # `poll` waits so long for a message


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleSettings(ClientSettings):
    """Settings of a consumer that pops."""

    start: Literal["first", "last"] = "last"  # in a queue never consumed; see `Start`
    invisible_ms: int = 60_000  # what was received and not acknowledged comes again after it
    wait_ms: int = 15_000  # `receive` waits so long for a message

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        ClientSettings.__post_init__(self)
        require_positive(self, ("invisible_ms",))
        if self.wait_ms < 0:
            raise ConfigError(f"wait_ms is {self.wait_ms}, it cannot be negative")
        if self.start not in ("first", "last"):
            raise ConfigError(f"start is {self.start!r}; who pops begins first or last")
