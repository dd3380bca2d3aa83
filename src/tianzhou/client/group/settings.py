"""The settings of consumers, in addition to those of every client.

Defaults are those of the Java client; the table in docs/client.md has both names.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from tianzhou.client.group.rebalance import STRATEGIES, Allocate
from tianzhou.client.settings import ClientOptions, ClientSettings, require_positive
from tianzhou.errors import ConfigError

Start = Literal["first", "last"] | datetime
"""Where a group begins in a queue that it has never consumed.

A rule of RocketMQ comes first: in a queue whose first message is still in memory, as in every young
topic, a new group begins with the first message whatever `start` is. To begin at the end, set the
offsets before the first start: `tianzhou offset reset GROUP TOPIC --to latest`.
"""


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
    """Settings of all consumers that pull."""

    # -- the group ---------------------------------------------------------------------------------
    broadcasting: bool = False  # every consumer gets every message, without retries
    start: Start = "last"  # in a queue never consumed: first, last, a datetime; see `Start`
    allocate: str | Allocate = "averagely"  # or averagely_by_circle, consistent_hash, a function
    rebalance_ms: int = 20_000  # interval of rebalancing
    offsets_dir: str = ""  # offsets of broadcasting consumers; empty: ~/.rocketmq_offsets

    # -- pulling -----------------------------------------------------------------------------------
    pull_batch_size: int = 32  # messages of one pull; brokers have their own limits
    pull_batch_bytes: int = 256 * 1024  # bytes of one pull, if the broker supports it (5.x)
    pull_interval_ms: int = 0  # pause between pulls of a queue
    pull_suspend_ms: int = 15_000  # long polling: a broker parks an empty pull so long
    pull_timeout_ms: int = 30_000
    pull_error_pause_ms: int = 3_000  # longest back-off after a failed pull; it begins with 100 ms

    # -- flow control ------------------------------------------------------------------------------
    queue_messages_max: int = 1000  # of one queue
    queue_mib_max: int = 100  # of one queue
    queue_span_max: int = 2000  # between the lowest and the highest offset held of a queue
    topic_messages_max: int = -1  # of all queues together; -1: no such limit
    topic_mib_max: int = -1  # of all queues together; -1: no such limit

    # -- closing -----------------------------------------------------------------------------------
    close_timeout_ms: int = 30_000  # for handlers that are running

    def __post_init__(self) -> None:
        """Raises ConfigError for invalid values."""
        ClientSettings.__post_init__(self)
        require_positive(self, (
            "rebalance_ms", "pull_batch_size", "pull_batch_bytes", "pull_timeout_ms",
            "pull_error_pause_ms", "queue_messages_max", "queue_mib_max", "queue_span_max",
            "close_timeout_ms",
        ))  # fmt: skip
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
        """The allocation strategy. Raises ConfigError for an unknown name."""
        chosen = self.allocate
        if not isinstance(chosen, str):
            return chosen
        if chosen not in STRATEGIES:
            raise ConfigError(f"allocate is {chosen!r}; known are {', '.join(sorted(STRATEGIES))}")
        return STRATEGIES[chosen]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSettings(ConsumerSettings):
    """Settings of `PushConsumer`."""

    ordered: bool = False  # one message of a queue at a time, in order
    consume_threads: int = 20  # concurrent handlers: threads for functions, tasks for coroutines
    batch_size: int = 1  # messages per call of a batch handler
    max_reconsume_times: int = -1  # retries before a dead letter; -1: 16, ordered unlimited
    consume_timeout_ms: int = 900_000  # a message whose handler runs longer is sent back
    suspend_ms: int = 1_000  # ordered: pause after a failure
    local_retry_ms: int = 5_000  # retry here if a message cannot be sent back
    auto_commit: bool = True  # ordered: False lets handlers return a Decision
    lock_ms: int = 20_000  # ordered: interval of renewing queue locks

    def __post_init__(self) -> None:
        """Raises ConfigError for invalid values."""
        ConsumerSettings.__post_init__(self)
        require_positive(self, (
            "consume_threads", "batch_size", "consume_timeout_ms", "suspend_ms", "local_retry_ms",
            "lock_ms",
        ))  # fmt: skip
        if self.max_reconsume_times < -1:
            raise ConfigError(
                f"max_reconsume_times is {self.max_reconsume_times}, at least -1 is needed"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePullSettings(ConsumerSettings):
    """Settings of `LitePullConsumer`."""

    auto_commit: bool = True  # offsets of polled messages are saved every persist_offsets_ms
    poll_timeout_ms: int = 5_000  # `poll` waits so long for a message


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleSettings(ClientSettings):
    """Settings of `SimpleConsumer`."""

    start: Literal["first", "last"] = "last"  # in a queue never consumed; see `Start`
    invisible_ms: int = 60_000  # unacknowledged messages are delivered again after it
    wait_ms: int = 15_000  # `receive` waits so long for a message

    def __post_init__(self) -> None:
        """Raises ConfigError for invalid values."""
        ClientSettings.__post_init__(self)
        require_positive(self, ("invisible_ms",))
        if self.wait_ms < 0:
            raise ConfigError(f"wait_ms is {self.wait_ms}, it cannot be negative")
        if self.start not in ("first", "last"):
            raise ConfigError(f"start is {self.start!r}; a simple consumer begins first or last")
