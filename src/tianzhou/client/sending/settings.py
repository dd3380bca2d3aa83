"""The settings of a producer, beside those of every client."""

from dataclasses import dataclass
from typing import ClassVar

from tianzhou.client.sending.send_request import Packing
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
    """What a producer may be told."""

    # -- tries -------------------------------------------------------------------------------------
    send_timeout_ms: int = 3_000  # for all tries of a send together
    try_timeout_ms: int = 0  # over 0: for each try that another one may follow
    retry_count: int = 2  # further tries of an awaited send that may be stored already
    async_retry_count: int = 2  # the same of a submitted send
    retry_when_not_stored: bool = False  # try again if the status is not SEND_OK
    send_latency_fault: bool = False  # leave out brokers that were slow or failed

    # -- topics that do not exist ------------------------------------------------------------------
    template_topic: str = AUTO_CREATE_TOPIC
    template_queue_count: int = 4  # queues on each broker, no more than the template has

    # -- messages ----------------------------------------------------------------------------------
    message_bytes_max: int = 4 * 1024 * 1024
    compress_over_bytes: int = 4 * 1024  # bodies of so many bytes are compressed
    compression: CompressionType = CompressionType.ZLIB
    compression_level: int = 5

    # -- flow --------------------------------------------------------------------------------------
    in_flight_count: int = 1_024  # messages without an answer; further ones wait
    in_flight_bytes: int = 100 * 1024 * 1024
    batch_bytes: int = 1024 * 1024  # size of a batch, by send_many and by linger_ms
    batch_count: int = 1_024  # messages in a batch
    linger_ms: float = 0  # over 0: messages wait so long for others to share a batch with
    close_timeout_ms: int = 10_000  # closing waits so long for sends on their way

    _POSITIVE: ClassVar[tuple[str, ...]] = (
        "send_timeout_ms", "template_queue_count", "message_bytes_max", "compress_over_bytes",
        "in_flight_count", "in_flight_bytes", "batch_bytes", "batch_count", "close_timeout_ms",
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        ClientSettings.__post_init__(self)
        require_positive(self, ProducerSettings._POSITIVE)
        for name in ("try_timeout_ms", "retry_count", "async_retry_count", "linger_ms"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, it cannot be negative")

    def packing(self) -> Packing:
        """How bodies are packed."""
        return Packing(
            compress_over_bytes=self.compress_over_bytes,
            compression=self.compression,
            compression_level=self.compression_level,
            message_bytes_max=self.message_bytes_max,
        )
