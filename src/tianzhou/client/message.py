"""Messages as programs see them: what they send, and what they receive.

`Message` is what a program hands to a producer; it is plain data and may be sent any number of
times. `ReceivedMessage` is a view of a record that a broker delivered; what costs time (unpacking
the body, decoding text, reading JSON) happens when it is asked for.
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

    At most one of `delay_level`, `delay` and `deliver_at` is given. Levels (1 to 18, the broker's
    table) work everywhere; the other two need a broker that has timers (RocketMQ 5, Tianzhou).
    """

    topic: str
    body: bytes | bytearray | memoryview | str
    """Text is sent in UTF-8; see `Message.json` for anything else. `payload` is what is sent."""
    tags: str | None = None
    keys: str | tuple[str, ...] | list[str] = ()
    """Business ids, by which the message can be found and recognised."""
    properties: Mapping[str, str] = {}
    """Whatever else consumers shall know; SQL filters look at them."""
    delay_level: int = 0
    delay: float | timedelta | None = None
    """Seconds until delivery."""
    deliver_at: datetime | None = None
    shard: str | None = None
    """Messages of one shard keep their order when they are sent with `send_ordered`."""
    wait_stored: bool = True
    """Whether the broker answers only after flush and replication, where it does these."""
    flag: int = 0

    def __post_init__(self) -> None:
        if type(self.body) is not bytes:
            msgspec.structs.force_setattr(self, "body", _as_bytes(self.body))
        if type(self.topic) is not str or self.tags or self.keys or self.properties:
            self._check_texts()
        if self.delay_level or self.delay is not None or self.deliver_at is not None:
            self._check_delay()

    def _check_texts(self) -> None:
        _require("topic", self.topic, str, "a text")
        _require("tags", self.tags, str | None, "a text, one tag")
        _require("keys", self.keys, str | tuple | list, "a text, or a list of texts")
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
        if self.delay is not None and self._delay_ms() < 0:
            raise MessageRefused(f"delay is {self.delay}, it cannot be negative")
        if self.deliver_at is not None and self.deliver_at.tzinfo is None:
            raise MessageRefused("deliver_at has no time zone; give an aware datetime")

    def _delay_ms(self) -> int:
        return duration_ms(self.delay or 0)

    @property
    def payload(self) -> bytes:
        """The body as bytes."""
        # Made so by __post_init__; a cast would cost as much as all the rest.
        return self.body  # type: ignore[return-value]  # pyright: ignore[reportReturnType]

    @property
    def is_delayed(self) -> bool:
        """Whether it is delivered later than it is sent."""
        return bool(self.delay_level or self.delay is not None or self.deliver_at is not None)

    @classmethod
    def json(cls, topic: str, value: object, **options: Any) -> "Message":  # noqa: ANN401 - the fields of Message
        """A message whose body is `value` as JSON: plain data, dataclasses, msgspec, pydantic."""
        return cls(topic, to_json(value), **options)

    def wire_properties(self, namespace: str = "") -> dict[str, str]:
        """The properties that brokers and consumers see, in Java's order: the program's first."""
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
            wire[properties.TIMER_DELAY_MS] = str(self._delay_ms())
        elif self.deliver_at is not None:
            wire[properties.TIMER_DELIVER_MS] = str(ms_of(self.deliver_at))
        if namespace:
            wire[properties.INSTANCE_ID] = namespace
        return wire


def _require(name: str, value: object, kind: Any, wanted: str) -> None:  # noqa: ANN401 - a type or a union
    if not isinstance(value, kind):
        raise MessageRefused(f"{name} is {value!r}; it takes {wanted}")


class ReceivedMessage:
    """A message that a consumer got, or the reply to a request."""

    __slots__ = ("_body", "_body_limit", "_namespace", "broker_name", "stored")

    def __init__(
        self,
        stored: StoredMessage,
        broker_name: str = "",
        namespace: str = "",
        unpacked_bytes_max: int = UNPACKED_BYTES_MAX,
    ) -> None:
        self.stored = stored
        """The record as the broker sent it."""
        self.broker_name = broker_name
        self._namespace = namespace
        self._body: bytes | None = None
        self._body_limit = unpacked_bytes_max

    def __repr__(self) -> str:
        return (
            f"<ReceivedMessage {self.topic} {self.broker_name}/{self.queue_id}"
            f"@{self.queue_offset} id={self.msg_id} keys={self.keys}>"
        )

    # -- what was said -----------------------------------------------------------------------------

    @property
    def topic(self) -> str:
        """The topic without its namespace; a message that is tried again keeps its first topic."""
        topic = self.stored.topic
        if topic.startswith(RETRY_TOPIC_PREFIX):
            topic = self.stored.properties.get(properties.RETRY_TOPIC, topic)
        return namespaces.strip(self._namespace, topic) if self._namespace else topic

    @property
    def body(self) -> bytes:
        """The body as it was sent. Raises BodyError if it is damaged or unpacks to too much."""
        if self._body is None:
            stored = self.stored
            self._body = plain_body(stored.body, stored.sys_flag, self._body_limit)
        return self._body

    @property
    def text(self) -> str:
        """The body as UTF-8. Raises BodyError if it is none."""
        try:
            return self.body.decode()
        except UnicodeDecodeError as e:
            raise BodyError(f"message {self.msg_id} of topic {self.topic}: no UTF-8: {e}") from e

    def json(self) -> Any:  # noqa: ANN401 - whatever the JSON says
        """The body read as JSON. Raises BodyError if it is none."""
        return self._read(lambda body: msgspec.json.decode(body))

    def as_(self, kind: type[T]) -> T:
        """The body read as JSON of a type: a dataclass, a msgspec Struct, a pydantic model.

        Raises BodyError if the body does not fit the type.
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

    # -- who, where, when --------------------------------------------------------------------------

    @property
    def msg_id(self) -> str:
        """The producer's id of the message; the same for every delivery of one send."""
        return id_of(self.stored)

    @property
    def offset_msg_id(self) -> str:
        """The broker's id: where the record lies."""
        return offset_id_of(self.stored)

    @property
    def transaction_id(self) -> str | None:
        return self.stored.properties.get(properties.TRANSACTION_ID)

    @property
    def queue(self) -> Queue:
        """The queue it lies in, under the wire's name of the topic."""
        return Queue(self.stored.topic, self.broker_name, self.stored.queue_id)

    @property
    def queue_id(self) -> int:
        return self.stored.queue_id

    @property
    def queue_offset(self) -> int:
        return self.stored.queue_offset

    @property
    def reconsume_times(self) -> int:
        """How often it was tried before."""
        return self.stored.reconsume_count

    @property
    def born_time(self) -> datetime:
        """When it was sent, by the producer's clock, in UTC."""
        return time_of(self.stored.born_time_ms)

    @property
    def store_time(self) -> datetime:
        """When it was stored, by the broker's clock, in UTC."""
        return time_of(self.stored.store_time_ms)

    @property
    def born_host(self) -> Host:
        return self.stored.born_host

    @property
    def store_host(self) -> Host:
        return self.stored.store_host

    @property
    def size_bytes(self) -> int:
        """Length of the record."""
        return self.stored.size_bytes


# -- times and JSON --------------------------------------------------------------------------------


def time_of(epoch_ms: int) -> datetime:
    """Milliseconds since 1970 as a time in UTC."""
    return _EPOCH + timedelta(milliseconds=epoch_ms)


def duration_ms(duration: float | timedelta) -> int:
    """Milliseconds of a duration, which is seconds unless it says otherwise."""
    if isinstance(duration, timedelta):
        return round(duration / timedelta(milliseconds=1))
    return round(duration * 1000)


def ms_of(moment: datetime) -> int:
    """Milliseconds since 1970 of an aware time."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def to_json(value: object) -> bytes:
    """JSON of plain data, dataclasses, msgspec Structs and pydantic models, also of these in lists.

    Names of a model's fields are their aliases, by which the model reads them again. Raises
    MessageRefused for what cannot be written.
    """
    try:
        return msgspec.json.encode(value, enc_hook=_plain_model)
    except (TypeError, ValueError, RecursionError) as e:
        raise MessageRefused(f"a {type(value).__name__} cannot be written as JSON: {e}") from e


def _plain_model(value: object) -> object:
    """A pydantic model as plain data; pydantic itself is not needed here."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"{type(value).__name__} is nothing that JSON can say")
    return dump(mode="json", by_alias=True)


def from_json(data: bytes, kind: type[T]) -> T:
    """The value of a type that JSON holds. Raises ValueError if it is none."""
    validate = getattr(kind, "model_validate_json", None)
    if validate is not None:
        model: T = validate(data)
        return model
    return msgspec.json.decode(data, type=kind, dec_hook=_model_from)


def _model_from(kind: type, value: object) -> object:
    """A pydantic model within another type, such as a list."""
    validate = getattr(kind, "model_validate", None)
    if validate is None:
        raise TypeError(f"nothing in JSON is a {kind.__name__}")
    return validate(value)


def _as_bytes(body: object) -> bytes:
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytes | bytearray):
        return bytes(body)
    if isinstance(body, memoryview):
        return body.tobytes()
    raise MessageRefused(
        f"a body is bytes or text, not {type(body).__name__}; Message.json(topic, value) takes "
        "anything that JSON can say"
    )
