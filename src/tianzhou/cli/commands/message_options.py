"""Options of the message commands: which message, which queue, the bodies to send."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from tianzhou.errors import ConfigError

MessageId = Annotated[
    str, typer.Argument(metavar="ID", help="The producer's or the broker's id.", show_default=False)
]
MessageIds = Annotated[
    list[str],
    typer.Argument(metavar="ID...", help="Producers' or brokers' ids.", show_default=False),
]
TopicOfId = Annotated[
    str | None,
    typer.Option("--topic", "-t", metavar="TOPIC", help="Its topic, for a producer's id."),
]
BrokerOfId = Annotated[
    str | None,
    typer.Option(
        "--broker", "-b", metavar="NAME|ADDR",
        help="Ask this broker, not the one in a broker's id; for one that has moved.",
    ),
]  # fmt: skip
QueueOption = Annotated[int | None, typer.Option("--queue", min=0, help="Only this queue.")]
BrokerName = Annotated[
    str | None, typer.Option("--broker", "-b", metavar="NAME|ADDR", help="Only this broker.")
]
BODY_BYTES_MAX = 64 * 1024 * 1024


def read_bodies(body: str | None, file: Path | None, *, lines: bool) -> list[bytes]:
    """The bodies to send. Raises ConfigError."""
    if body not in (None, "-") and (file is not None or lines):
        raise ConfigError("give either a body, or --file, or --lines from standard input")
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
            raise ConfigError("there is no body: write one, name a --file, or pipe one in")
        content = sys.stdin.buffer.read(BODY_BYTES_MAX + 1)
    if len(content) > BODY_BYTES_MAX:
        raise ConfigError(f"more than {BODY_BYTES_MAX} bytes; send it in parts")
    if not lines:
        return [content]
    found = [line for line in content.splitlines() if line]
    if not found:
        raise ConfigError("there is no line to send")
    return found
