"""Offsets of consumers and of delay levels: the tables, and their reset."""

from msgspec import field

from tianzhou.protocol.bodies.codec import Body
from tianzhou.protocol.bodies.queues import MessageQueue
from tianzhou.protocol.bodies.topics import DataVersion
from tianzhou.protocol.integers import Int32, Int64


class ConsumerOffsetTable(Body, frozen=True, kw_only=True):
    """Response to GET_ALL_CONSUMER_OFFSET."""

    offsets: dict[str, dict[Int32, Int64]] = field(default={}, name="offsetTable")
    """Offsets by "topic@group", then by queue id."""
    data_version: DataVersion | None = None


class DelayOffsetTable(Body, frozen=True, kw_only=True):
    """Response to GET_ALL_DELAY_OFFSET."""

    offsets: dict[Int32, Int64] = field(default={}, name="offsetTable")
    """Offsets by delay level."""
    data_version: DataVersion | None = None


class ResetOffsetBody(Body, frozen=True, kw_only=True):
    """Offsets to go to: body of RESET_CONSUMER_CLIENT_OFFSET, response to the broker's reset."""

    offsets: dict[MessageQueue, Int64] = field(default={}, name="offsetTable")


class QueueOffset(MessageQueue, frozen=True, kw_only=True):
    """A queue and an offset in it."""

    queue_offset: Int64 = field(default=0, name="offset")


class ResetOffsetBodyForC(Body, frozen=True, kw_only=True):
    """The same for clients in C++, which cannot read objects as keys."""

    offsets: list[QueueOffset] | None = field(default=None, name="offsetTable")


class ConsumerStatusBody(Body, frozen=True, kw_only=True):
    """Response to GET_CONSUMER_STATUS_FROM_CLIENT (one client) and to the broker's (all)."""

    offsets: dict[MessageQueue, Int64] = field(default={}, name="messageQueueTable")
    offsets_by_client: dict[str, dict[MessageQueue, Int64]] = field(
        default={}, name="consumerTable"
    )


class QueryCorrectionOffsetBody(Body, frozen=True, kw_only=True):
    """Response to QUERY_CORRECTION_OFFSET: offsets by queue id."""

    offsets: dict[Int32, Int64] = field(default={}, name="correctionOffsets")
