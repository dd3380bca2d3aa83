"""Popped messages, and how they are decoded from a response.

A popped message has a receipt handle (POP_CK), with which it is acknowledged or its invisible time
changed. It is built as in the Java client: from the start offset of the pop in the message's queue,
the times of the pop, and the message's own offset. Redelivered messages lie in a retry topic of the
group; the broker returns them under their original topic, with the handle among their properties,
or (popResponseReturnActualRetryTopic) under the retry topic. Programs see the subscribed topic in
both cases.
"""

import time
from dataclasses import replace
from datetime import datetime

from tianzhou.client import namespaces
from tianzhou.client.message import ReceivedMessage, time_of
from tianzhou.errors import FieldError, RecordError
from tianzhou.message import StoredMessage
from tianzhou.protocol import properties
from tianzhou.protocol.headers.pop import ChangeInvisibleTimeResponse, PopMessageResponse
from tianzhou.protocol.kernel import body_crc
from tianzhou.protocol.records import receipts
from tianzhou.protocol.records.receipts import Receipt
from tianzhou.protocol.records.record import decode_records


class PoppedMessage(ReceivedMessage):
    """A received message that is invisible to other consumers for its invisible time."""

    __slots__ = ("_expires_s", "receipt", "wire_topic")

    def __init__(
        self,
        stored: StoredMessage,
        receipt: Receipt,
        wire_topic: str,
        broker_name: str,
        namespace: str,
        unpacked_bytes_max: int,
    ) -> None:
        super().__init__(stored, broker_name, namespace, unpacked_bytes_max)
        self.wire_topic = wire_topic
        """The topic that was subscribed to, as brokers know it."""
        self._set_receipt(receipt)

    def _set_receipt(self, receipt: Receipt) -> None:
        self.receipt = receipt
        """The decoded handle."""
        # Counted from the arrival of the response: clocks of two machines may differ.
        self._expires_s = time.monotonic() + receipt.invisible_time_ms / 1000

    @property
    def topic(self) -> str:
        """The topic that was subscribed to, without its namespace."""
        return namespaces.strip(self._namespace, self.wire_topic)

    @property
    def handle(self) -> str:
        """The receipt handle, for acknowledgement; it changes with the invisible time."""
        return str(self.receipt)

    @property
    def visible_at(self) -> datetime:
        """When the invisible time ends, by the broker's clock (UTC)."""
        return time_of(self.receipt.pop_time_ms + self.receipt.invisible_time_ms)

    @property
    def is_expired(self) -> bool:
        """Whether the invisible time is over, by the local clock."""
        return time.monotonic() >= self._expires_s

    def renew(self, response: ChangeInvisibleTimeResponse) -> None:
        """The broker has changed the invisible time, and with it the handle."""
        self._set_receipt(
            replace(
                self.receipt,
                start_offset=self.handle_offset,
                pop_time_ms=response.pop_time_ms,
                invisible_time_ms=response.invisible_time_ms,
                revive_queue_id=response.revive_queue_id,
                queue_offset=self.handle_offset,
            )
        )

    @property
    def handle_offset(self) -> int:
        """The queue offset in the handle."""
        at = self.receipt.queue_offset
        return self.stored.queue_offset if at is None else at


def sound_records(body: bytes) -> tuple[list[StoredMessage], list[StoredMessage]]:
    """The records of a response: those with a correct CRC, and the damaged ones.

    Raises RecordError if the body cannot be decoded.
    """
    try:
        return decode_records(body, check_crc=True), []
    except RecordError:
        found = decode_records(body, check_crc=False)
    sound = [each for each in found if body_crc(each.body) == each.body_crc]
    return sound, [each for each in found if body_crc(each.body) != each.body_crc]


def _receipt_in(stored: StoredMessage) -> Receipt | None:
    try:
        return receipts.parse_receipt(stored.properties.get(properties.POP_CK, ""))
    except FieldError:
        return None


def receipt_of(
    stored: StoredMessage,
    response: PopMessageResponse,
    starts: dict[tuple[str, int], int],
    broker_name: str,
) -> Receipt:
    """The receipt of a message. Raises RecordError if the response lacks its queue."""
    given = _receipt_in(stored)
    # Any other belongs to the message of which this one is a copy.
    if given is not None and given.pop_time_ms == response.pop_time_ms:
        return given
    mark = receipts.mark_of(stored.topic)
    # The first brokers of 5.x return no start offsets; then each message is its own start.
    start = starts.get((mark, stored.queue_id)) if starts else stored.queue_offset
    if start is None:
        raise RecordError(
            f"received a message of {stored.topic[:64]} {stored.queue_id}, for which the response "
            "has no start offset"
        )
    return Receipt(
        start, response.pop_time_ms, response.invisible_time_ms, response.revive_queue_id, mark,
        broker_name, stored.queue_id, stored.queue_offset,
    )  # fmt: skip
