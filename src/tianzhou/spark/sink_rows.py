"""Rows of a data frame made messages, a record batch at a time."""

from collections.abc import Iterator
from typing import Any

from pyarrow import RecordBatch

from tianzhou.client.message import Message
from tianzhou.errors import MessageRefused


def messages_of(batch: RecordBatch, topic: str) -> Iterator[Message]:
    """The messages of a record batch, in its order; `topic` is of rows that name none.

    Raises MessageRefused for a row that cannot be one.
    """
    columns: dict[str, list[Any]] = {
        name: batch.column(place).to_pylist() for place, name in enumerate(batch.schema.names)
    }
    nothing: list[Any] = [None] * batch.num_rows
    topics = columns.get("topic", nothing)
    tags = columns.get("tags", nothing)
    keys = columns.get("keys", nothing)
    properties = columns.get("properties", nothing)
    shards = columns.get("orderKey", nothing)
    delays = columns.get("delayMs", nothing)
    times = columns.get("deliverAt", nothing)
    for at, body in enumerate(columns["body"]):
        if body is None:
            raise MessageRefused(f"topic {topics[at] or topic}: the body of a row is null")
        yield Message(
            topics[at] or topic,
            body,
            tags[at] or None,
            _keys(keys[at]),
            dict(properties[at]) if properties[at] else {},
            delay=_delay_s(delays[at]),
            deliver_at=times[at],
            shard=shards[at],
        )


def _keys(value: Any) -> str | tuple[str, ...]:  # noqa: ANN401 - text, a list or nothing
    if not value:
        return ()
    return value if isinstance(value, str) else tuple(each for each in value if each)


def _delay_s(value: int | None) -> float | None:
    return None if value is None or value <= 0 else value / 1000
