"""The settings of a consumer group as options of commands."""

from dataclasses import dataclass
from typing import Annotated

import msgspec
import typer

from tianzhou.cli.shared.bulk_change import Attributes, RemovedAttributes, attribute_changes
from tianzhou.cli.shared.command import OptionGroup
from tianzhou.errors import BodyError, ConfigError
from tianzhou.protocol import bodies
from tianzhou.protocol.bodies.groups import GroupRetryPolicy, SubscriptionGroupConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions(OptionGroup):
    """The settings of a group; None leaves a setting unchanged."""

    consume: Annotated[
        bool | None, typer.Option("--consume/--no-consume", help="Whether the group may consume.")
    ] = None
    broadcast: Annotated[
        bool | None,
        typer.Option("--broadcast/--no-broadcast", help="Whether it may consume by broadcasting."),
    ] = None
    from_min: Annotated[
        bool | None,
        typer.Option(
            "--from-min/--not-from-min", help="Whether a new group starts at the oldest message."
        ),
    ] = None
    orderly: Annotated[
        bool | None,
        typer.Option("--orderly/--not-orderly", help="Whether it consumes orderly (5.x)."),
    ] = None
    retries: Annotated[
        int | None,
        typer.Option("--retries", min=-1, help="Retries before a message becomes a dead letter."),
    ] = None
    retry_queues: Annotated[
        int | None, typer.Option("--retry-queues", min=0, help="Queues of its retry topic.")
    ] = None
    broker_id: Annotated[
        int | None,
        typer.Option("--broker-id", min=0, help="Id of the broker to read from; 0 is the master."),
    ] = None
    when_slow: Annotated[
        int | None,
        typer.Option(
            "--broker-id-when-slow", min=0, help="Id of the broker to read from with a large lag."
        ),
    ] = None
    notify: Annotated[
        bool | None,
        typer.Option(
            "--notify/--no-notify", help="Whether members are notified when members change."
        ),
    ] = None
    retry_policy: Annotated[
        str | None,
        typer.Option(
            "--retry-policy",
            metavar="JSON",
            help='Retry policy of 5.x: {"type": "EXPONENTIAL", ...}.',
        ),
    ] = None
    attribute: Attributes = None
    remove_attribute: RemovedAttributes = None

    def of(self, before: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """`before` with the given settings changed. Raises ConfigError."""
        given = {
            "consume_enable": self.consume,
            "consume_broadcast_enable": self.broadcast,
            "consume_from_min_enable": self.from_min,
            "consume_orderly": self.orderly,
            "retry_max_times": self.retries,
            "retry_queue_count": self.retry_queues,
            "broker_id": self.broker_id,
            "which_broker_when_consume_slowly": self.when_slow,
            "notify_consumer_ids_changed_enable": self.notify,
            "retry_policy": _read_policy(self.retry_policy),
            "attributes": attribute_changes(self.attribute, self.remove_attribute),
        }
        wanted = {name: value for name, value in given.items() if value is not None}
        return msgspec.structs.replace(before, **wanted)


def _read_policy(text: str | None) -> GroupRetryPolicy | None:
    if text is None:
        return None
    try:
        return bodies.decode(GroupRetryPolicy, text.encode())
    except BodyError as e:
        raise ConfigError(f"--retry-policy: {e}") from e
