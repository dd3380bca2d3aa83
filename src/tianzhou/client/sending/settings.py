"""The settings of a producer, in addition to those of every client."""

from dataclasses import dataclass
from typing import ClassVar

from tianzhou.client.settings import ClientOptions, ClientSettings, require_positive
from tianzhou.errors import ConfigError
from tianzhou.names import AUTO_CREATE_TOPIC
from tianzhou.protocol.records.compression import CompressionType


class ProducerOptions(ClientOptions, total=False):
    """The fields of `ProducerSettings` as keywords."""

    send_timeout_ms: int
    try_timeout_ms: int
    retry_count: int
    async_retry_count: int
    retry_when_not_stored: bool
    send_latency_fault: bool
    template_topic: str
    template_queue_count: int
    message_bytes_max: int
    compress_over_bytes: int
    compression: CompressionType
    compression_level: int
    in_flight_count: int
    in_flight_bytes: int
    batch_bytes: int
    batch_count: int
    linger_ms: float
    close_timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings(ClientSettings):
    """Settings of a producer; keywords of `Producer` have the same names."""

    # -- retries -----------------------------------------------------------------------------------
    send_timeout_ms: int = 3_000  # for all attempts of a send
    try_timeout_ms: int = 0  # over 0: for each attempt but the last
    retry_count: int = 2  # retries of an awaited send that may be stored already
    async_retry_count: int = 2  # the same for `submit`
    retry_when_not_stored: bool = False  # retry if the status is not SEND_OK
    send_latency_fault: bool = False  # avoid brokers that were slow or failed

    # -- topics that do not exist ------------------------------------------------------------------
    template_topic: str = AUTO_CREATE_TOPIC
    template_queue_count: int = 4  # queues on each broker, no more than the template has

    # -- messages ----------------------------------------------------------------------------------
    message_bytes_max: int = 4 * 1024 * 1024
    compress_over_bytes: int = 4 * 1024  # bodies of at least this size are compressed
    compression: CompressionType = CompressionType.ZLIB
    compression_level: int = 5

    # -- limits and batches ------------------------------------------------------------------------
    in_flight_count: int = 1_024  # messages without a response; further sends wait
    in_flight_bytes: int = 100 * 1024 * 1024
    batch_bytes: int = 1024 * 1024  # size of a batch, for send_many and linger_ms
    batch_count: int = 1_024  # messages in a batch
    linger_ms: float = 0  # over 0: messages wait so long to be batched
    close_timeout_ms: int = 10_000  # close waits so long for messages in flight

    _POSITIVE: ClassVar[tuple[str, ...]] = (
        "send_timeout_ms", "template_queue_count", "message_bytes_max", "compress_over_bytes",
        "in_flight_count", "in_flight_bytes", "batch_bytes", "batch_count", "close_timeout_ms",
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Raises ConfigError for invalid values."""
        ClientSettings.__post_init__(self)
        require_positive(self, ProducerSettings._POSITIVE)
        for name in ("try_timeout_ms", "retry_count", "async_retry_count", "linger_ms"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, it cannot be negative")
