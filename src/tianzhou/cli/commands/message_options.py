"""Options of the message commands: which message, which queue, the bodies to send."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tianzhou.cli.shared.command import OptionGroup
from tianzhou.cli.shared.common_options import pairs_of
from tianzhou.errors import ConfigError
from tianzhou.message import Message

MessageId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="Message id of the producer, or offset id of the broker.",
        show_default=False,
    ),
]
MessageIds = Annotated[
    list[str],
    typer.Argument(
        metavar="ID...",
        help="Message ids of producers, or offset ids of brokers.",
        show_default=False,
    ),
]
TopicOfId = Annotated[
    str | None,
    typer.Option(
        "--topic", "-t", metavar="TOPIC", help="Topic of the message; needed for a producer's id."
    ),
]
BrokerOfId = Annotated[
    str | None,
    typer.Option(
        "--broker", "-b", metavar="NAME|ADDR",
        help="Ask this broker instead of the address in an offset id.",
    ),
]  # fmt: skip
QueueOption = Annotated[int | None, typer.Option("--queue", min=0, help="Only this queue.")]
BrokerName = Annotated[
    str | None, typer.Option("--broker", "-b", metavar="NAME|ADDR", help="Only this broker.")
]
QueueId = Annotated[int, typer.Option("--queue", min=0, help="The queue.")]
QueueOffset = Annotated[int, typer.Option("--offset", min=0, help="The queue offset.")]
Count = Annotated[int, typer.Option("--count", min=1, max=1000, help="Number of messages.")]
BODY_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFields(OptionGroup):
    """The fields of the messages to send, besides topic and body."""

    tag: Annotated[str | None, typer.Option("--tag", help="Tag of the message.")] = None
    key: Annotated[
        list[str] | None, typer.Option("--key", help="Key for queries; may be repeated.")
    ] = None
    prop: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="KEY=VALUE", help="A property; may be repeated."),
    ] = None
    delay_level: Annotated[
        int,
        typer.Option("--delay-level", min=0, max=18, help="1 (1 s) to 18 (2 h); 0 for no delay."),
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
