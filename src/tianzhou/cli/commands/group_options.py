"""The settings of a consumer group as options of commands."""

from dataclasses import dataclass
from typing import Annotated

import msgspec

from tianzhou.cli.shared.bulk_change import Attributes, RemovedAttributes, attribute_changes
from tianzhou.cli.shared.command import OptionGroup
from tianzhou.cli.shared.parameters import option
from tianzhou.errors import BodyError, ConfigError
from tianzhou.protocol import bodies
from tianzhou.protocol.bodies.groups import GroupRetryPolicy, SubscriptionGroupConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions(OptionGroup):
    """The settings of a group; None leaves a setting unchanged."""

    consume: Annotated[
        bool | None, option("--consume/--no-consume", "Whether the group may consume.")
    ] = None
    broadcast: Annotated[
        bool | None, option("--broadcast/--no-broadcast", "Whether it may consume by broadcasting.")
    ] = None
    from_min: Annotated[
        bool | None,
        option("--from-min/--not-from-min", "Whether a new group starts at the oldest message."),
    ] = None
    orderly: Annotated[
        bool | None, option("--orderly/--not-orderly", "Whether it consumes orderly (5.x).")
    ] = None
    retries: Annotated[
        int | None, option("--retries", "Retries before a message becomes a dead letter.", min=-1)
    ] = None
    retry_queues: Annotated[
        int | None, option("--retry-queues", "Queues of its retry topic.", min=0)
    ] = None
    broker_id: Annotated[
        int | None, option("--broker-id", "Id of the broker to read from; 0 is the master.", min=0)
    ] = None
    when_slow: Annotated[
        int | None,
        option("--broker-id-when-slow", "Id of the broker to read from with a large lag.", min=0),
    ] = None
    notify: Annotated[
        bool | None,
        option("--notify/--no-notify", "Whether members are notified when members change."),
    ] = None
    retry_policy: Annotated[
        str | None,
        option("--retry-policy JSON", 'Retry policy of 5.x: {"type": "EXPONENTIAL", ...}.'),
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
