"""Messages of the client API.

`Message` is sent by producers; it is immutable data and may be sent any number of times.
`ReceivedMessage` is a view of a record from a broker; the body is decompressed and decoded when it
is read.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec

from tianzhou.client import namespaces
from tianzhou.client.queues import Queue
from tianzhou.errors import BodyError, MessageRefused
from tianzhou.message import Host, StoredMessage
from tianzhou.names import RETRY_TOPIC_PREFIX
from tianzhou.protocol import properties
from tianzhou.protocol.records.compression import plain_body
from tianzhou.protocol.records.message_id import id_of, offset_id_of

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNPACKED_BYTES_MAX = 64 * 1024 * 1024


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message to send.

    Give at most one of `delay_level`, `delay` and `deliver_at`. Levels (1 to 18, see the broker's
    `messageDelayLevel`) work everywhere; the other two need timers (RocketMQ 5, Tianzhou).
    """

    topic: str
    body: bytes | bytearray | memoryview | str
    """Text is encoded as UTF-8; `Message.json` encodes other values. `payload` has the bytes."""
    tags: str | None = None
    keys: str | tuple[str, ...] | list[str] = ()
    """Business keys: tools find the message by them, consumers recognise duplicates."""
    properties: Mapping[str, str] = {}
    """Further data for consumers; SQL filters use them."""
    delay_level: int = 0
    delay: float | timedelta | None = None
    """Seconds until delivery."""
    deliver_at: datetime | None = None
    shard: str | None = None
    """Messages of one shard keep their order when they are sent with `send_ordered`."""
    wait_stored: bool = True
    """Whether the broker responds after flush and replication, if these are synchronous."""
    flag: int = 0

    def __post_init__(self) -> None:
        if type(self.body) is not bytes:
            msgspec.structs.force_setattr(self, "body", _as_bytes(self.body))
        if type(self.topic) is not str or self.tags or self.keys or self.properties:
            self._check_texts()
        if self.delay_level or self.delay is not None or self.deliver_at is not None:
            self._check_delay()

    def _check_texts(self) -> None:
        _require("topic", self.topic, str, "a string")
        _require("tags", self.tags, str | None, "a string, one tag")
        _require("keys", self.keys, str | tuple | list, "a string, or a list of strings")
        _require("properties", self.properties, Mapping, "a mapping of texts to texts")

    def _check_delay(self) -> None:
        _require("delay_level", self.delay_level, int, "a number from 1 to 18")
        _require("delay", self.delay, int | float | timedelta | None, "seconds or a timedelta")
        _require("deliver_at", self.deliver_at, datetime | None, "a datetime with a time zone")
        given = (self.delay_level != 0, self.delay is not None, self.deliver_at is not None)
        if sum(given) > 1:
            raise MessageRefused("give one of delay_level, delay and deliver_at")
        if self.delay_level < 0:
            raise MessageRefused(f"delay_level is {self.delay_level}, 1 is the shortest")
        if self.delay is not None and duration_ms(self.delay) < 0:
            raise MessageRefused(f"delay is {self.delay}, it cannot be negative")
        if self.deliver_at is not None and self.deliver_at.tzinfo is None:
            raise MessageRefused("deliver_at has no time zone; give an aware datetime")

    @property
    def payload(self) -> bytes:
        """The body as bytes."""
        # __post_init__ made it bytes; a cast would double the cost.
        return self.body  # type: ignore[return-value]  # pyright: ignore[reportReturnType]

    @property
    def is_delayed(self) -> bool:
        """Whether the message has a delay or a delivery time."""
        return bool(self.delay_level or self.delay is not None or self.deliver_at is not None)

    @classmethod
    def json(cls, topic: str, value: object, **options: Any) -> "Message":  # noqa: ANN401 - the fields of Message
        """A message with `value` as JSON: plain data, dataclasses, msgspec or pydantic models."""
        return cls(topic, to_json(value), **options)

    def wire_properties(self, namespace: str = "") -> dict[str, str]:
        """The properties on the wire, in Java's order: those of the program first."""
        wire = dict(self.properties)
        for name in wire:
            if name in properties.RESERVED:
                raise MessageRefused(
                    f"property {name} is reserved; use the field of Message for it"
                )
        if self.tags:
            wire[properties.TAGS] = self.tags
        if self.keys:
            keys = self.keys
            wire[properties.KEYS] = keys if isinstance(keys, str) else " ".join(keys)
        if self.shard is not None:
            wire[properties.SHARDING_KEY] = self.shard
        wire[properties.WAIT_STORED] = "true" if self.wait_stored else "false"
        if self.delay_level:
            wire[properties.DELAY_LEVEL] = str(self.delay_level)
        elif self.delay is not None:
            wire[properties.TIMER_DELAY_MS] = str(duration_ms(self.delay))
        elif self.deliver_at is not None:
            wire[properties.TIMER_DELIVER_MS] = str(ms_of(self.deliver_at))
        if namespace:
            wire[properties.INSTANCE_ID] = namespace
        return wire


def _require(name: str, value: object, kind: Any, wanted: str) -> None:  # noqa: ANN401 - a type or a union
    if not isinstance(value, kind):
        raise MessageRefused(f"{name} is {value!r}; it must be {wanted}")


class ReceivedMessage:
    """A message from a consumer, or the reply to a request."""

    __slots__ = ("_body", "_body_limit", "_namespace", "broker_name", "stored")

    def __init__(
        self,
        stored: StoredMessage,
        broker_name: str = "",
        namespace: str = "",
        unpacked_bytes_max: int = UNPACKED_BYTES_MAX,
    ) -> None:
        self.stored = stored
        """The decoded record."""
        self.broker_name = broker_name
        self._namespace = namespace
        self._body: bytes | None = None
        self._body_limit = unpacked_bytes_max

    def __repr__(self) -> str:
        return (
            f"<ReceivedMessage {self.topic} {self.broker_name}/{self.queue_id}"
            f"@{self.queue_offset} id={self.msg_id} keys={self.keys}>"
        )

    # -- content -----------------------------------------------------------------------------------

    @property
    def topic(self) -> str:
        """The topic without namespace; for a retried message, the original topic."""
        topic = self.stored.topic
        if topic.startswith(RETRY_TOPIC_PREFIX):
            topic = self.stored.properties.get(properties.RETRY_TOPIC, topic)
        return namespaces.strip(self._namespace, topic) if self._namespace else topic

    @property
    def body(self) -> bytes:
        """The body, decompressed. Raises BodyError if it is damaged or too large."""
        if self._body is None:
            stored = self.stored
            self._body = plain_body(stored.body, stored.sys_flag, self._body_limit)
        return self._body

    @property
    def text(self) -> str:
        """The body decoded as UTF-8. Raises BodyError."""
        try:
            return self.body.decode()
        except UnicodeDecodeError as e:
            raise BodyError(
                f"message {self.msg_id} of topic {self.topic}: not valid UTF-8: {e}"
            ) from e

    def json(self) -> Any:  # noqa: ANN401 - whatever the JSON says
        """The body decoded as JSON. Raises BodyError."""
        return self._read(lambda body: msgspec.json.decode(body))

    def as_(self, kind: type[T]) -> T:
        """The body decoded as JSON of a type: a dataclass, a msgspec Struct, a pydantic model.

        Raises BodyError if the body does not match the type.
        """
        return self._read(lambda body: from_json(body, kind))

    def _read(self, read: Callable[[bytes], T]) -> T:
        try:
            return read(self.body)
        except ValueError as e:  # msgspec's and pydantic's errors are ValueErrors
            raise BodyError(f"message {self.msg_id} of topic {self.topic}: {e}") from e

    @property
    def properties(self) -> dict[str, str]:
        return self.stored.properties

    @property
    def tags(self) -> str | None:
        return self.stored.properties.get(properties.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.stored.properties.get(properties.KEYS, "").split())

    @property
    def key(self) -> str | None:
        """The first key, None if there is none."""
        keys = self.keys
        return keys[0] if keys else None

    @property
    def shard(self) -> str | None:
        return self.stored.properties.get(properties.SHARDING_KEY)

    @property
    def flag(self) -> int:
        return self.stored.flag

    # -- ids, queue, times -------------------------------------------------------------------------

    @property
    def msg_id(self) -> str:
        """The unique id from the producer; the same for every delivery of one send."""
        return id_of(self.stored)

    @property
    def offset_msg_id(self) -> str:
        """The id from the broker: its address and the position in the log."""
        return offset_id_of(self.stored)

    @property
    def transaction_id(self) -> str | None:
        return self.stored.properties.get(properties.TRANSACTION_ID)

    @property
    def queue(self) -> Queue:
        """The queue; its topic is the name on the wire."""
        return Queue(self.stored.topic, self.broker_name, self.stored.queue_id)

    @property
    def queue_id(self) -> int:
        return self.stored.queue_id

    @property
    def queue_offset(self) -> int:
        return self.stored.queue_offset

    @property
    def reconsume_times(self) -> int:
        """How often it was delivered before."""
        return self.stored.reconsume_count

    @property
    def born_time(self) -> datetime:
        """When it was sent, by the producer's clock (UTC)."""
        return time_of(self.stored.born_time_ms)

    @property
    def store_time(self) -> datetime:
        """When it was stored, by the broker's clock (UTC)."""
        return time_of(self.stored.store_time_ms)

    @property
    def born_host(self) -> Host:
        return self.stored.born_host

    @property
    def store_host(self) -> Host:
        return self.stored.store_host

    @property
    def size_bytes(self) -> int:
        """Size of the record."""
        return self.stored.size_bytes


# -- times and JSON --------------------------------------------------------------------------------


def time_of(epoch_ms: int) -> datetime:
    """Milliseconds since 1970 as a time in UTC."""
    return _EPOCH + timedelta(milliseconds=epoch_ms)


def duration_ms(duration: float | timedelta) -> int:
    """Milliseconds of a duration: seconds, or a timedelta."""
    if isinstance(duration, timedelta):
        return round(duration / timedelta(milliseconds=1))
    return round(duration * 1000)


def ms_of(moment: datetime) -> int:
    """Milliseconds since 1970 of an aware time."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def to_json(value: object) -> bytes:
    """JSON of plain data, dataclasses, msgspec Structs and pydantic models, also nested.

    Fields of models are named by their aliases. Raises MessageRefused for other values.
    """
    try:
        return msgspec.json.encode(value, enc_hook=_plain_model)
    except (TypeError, ValueError, RecursionError) as e:
        raise MessageRefused(f"a {type(value).__name__} cannot be encoded as JSON: {e}") from e


def _plain_model(value: object) -> object:
    """A pydantic model as plain data; pydantic itself is not needed here."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"{type(value).__name__} cannot be encoded as JSON")
    return dump(mode="json", by_alias=True)


def from_json(data: bytes, kind: type[T]) -> T:
    """Decode JSON as a type. Raises ValueError."""
    validate = getattr(kind, "model_validate_json", None)
    if validate is not None:
        model: T = validate(data)
        return model
    return msgspec.json.decode(data, type=kind, dec_hook=_model_from)


def _model_from(kind: type, value: object) -> object:
    """A pydantic model within another type, such as a list."""
    validate = getattr(kind, "model_validate", None)
    if validate is None:
        raise TypeError(f"JSON cannot be decoded as {kind.__name__}")
    return validate(value)


def _as_bytes(body: object) -> bytes:
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytes | bytearray):
        return bytes(body)
    if isinstance(body, memoryview):
        return body.tobytes()
    raise MessageRefused(
        f"a body is bytes or text, not {type(body).__name__}; use Message.json(topic, value) for "
        "other values"
    )
