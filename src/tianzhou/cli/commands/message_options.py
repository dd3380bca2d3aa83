"""Options of the message commands: which message, which queue, the bodies to send."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tianzhou.cli.shared.command import OptionGroup, Session
from tianzhou.cli.shared.common_options import Through, pairs_of
from tianzhou.cli.shared.parameters import argument, option
from tianzhou.errors import ConfigError
from tianzhou.message import Message, StoredMessage

MessageId = Annotated[
    str,
    argument("ID", "Message id of the producer, or offset id of the broker.", show_default=False),
]
MessageIds = Annotated[
    list[str],
    argument("ID...", "Message ids of producers, or offset ids of brokers.", show_default=False),
]
TopicOfId = Annotated[
    str | None, option("--topic, -t TOPIC", "Topic of the message; needed for a producer's id.")
]
BrokerOfId = Annotated[
    str | None,
    option("--broker, -b NAME|ADDR", "Ask this broker instead of the address in an offset id."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSource(OptionGroup):
    """Where a message with an id is."""

    topic: TopicOfId = None
    through: Through = None
    broker: BrokerOfId = None

    async def find(self, session: Session, message_id: str) -> StoredMessage:
        """Raises TargetError."""
        return await session.admin.messages.by_any_id(
            message_id, self.topic, through=self.through, broker=self.broker
        )


ANY_SOURCE = MessageSource()
QueueOption = Annotated[int | None, option("--queue", "Only this queue.", min=0)]
BrokerName = Annotated[str | None, option("--broker, -b NAME|ADDR", "Only this broker.")]
QueueId = Annotated[int, option("--queue", "The queue.", min=0)]
QueueOffset = Annotated[int, option("--offset", "The queue offset.", min=0)]
Count = Annotated[int, option("--count", "Number of messages.", min=1, max=1000)]
BODY_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFields(OptionGroup):
    """The fields of the messages to send, besides topic and body."""

    tag: Annotated[str | None, option("--tag", "Tag of the message.")] = None
    key: Annotated[list[str] | None, option("--key", "Key for queries; may be repeated.")] = None
    prop: Annotated[
        list[str] | None, option("--property KEY=VALUE", "A property; may be repeated.")
    ] = None
    delay_level: Annotated[
        int, option("--delay-level", "1 (1 s) to 18 (2 h); 0 for no delay.", min=0, max=18)
    ] = 0

    def messages(self, topic: str, bodies: Sequence[bytes]) -> list[Message]:
        """One message for each body. Raises ConfigError."""
        properties = pairs_of(self.prop or [])
        return [
            Message(
                topic,
                body,
                tags=self.tag,
                keys=tuple(self.key or ()),
                delay_level=self.delay_level,
                properties=properties,
            )
            for body in bodies
        ]


def read_bodies(body: str | None, file: Path | None, *, lines: bool) -> list[bytes]:
    """The bodies to send. Raises ConfigError."""
    if body not in (None, "-") and (file is not None or lines):
        raise ConfigError("pass either a body, or --file, or --lines with standard input")
    if body not in (None, "-"):
        assert body is not None
        return [body.encode()]
    if file is not None:
        try:
            content = file.read_bytes()
        except OSError as e:
            raise ConfigError(f"{file}: {e.strerror}") from e
    else:
        if sys.stdin.isatty() and body is None:
            raise ConfigError("no body: pass one as argument, with --file, or on standard input")
        content = sys.stdin.buffer.read(BODY_BYTES_MAX + 1)
    if len(content) > BODY_BYTES_MAX:
        raise ConfigError(f"more than {BODY_BYTES_MAX} bytes of input; split it")
    if not lines:
        return [content]
    found = [line for line in content.splitlines() if line]
    if not found:
        raise ConfigError("the input has no lines to send")
    return found
