"""Errors that several handlers raise, and checks that raise them."""

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.tables.clients import Subscription
from tianzhou.broker.validation import describe_permission, shorten
from tianzhou.errors import RequestError
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.topics import TopicConfig
from tianzhou.protocol.codes import ResponseCode


def find_topic(deps: Deps, name: str) -> TopicConfig:
    """Raises RequestError for an unknown topic."""
    topic = deps.topics.get(name)
    if topic is None:
        raise no_topic(deps.settings.config, name)
    return topic


def no_topic(config: BrokerConfig, name: str) -> RequestError:
    return RequestError(
        ResponseCode.TOPIC_NOT_EXIST,
        f"topic {shorten(name)} does not exist on broker {config.broker_name}",
    )


def find_group(deps: Deps, name: str) -> SubscriptionGroupConfig:
    """The group, created if that is allowed. Raises RequestError."""
    group = group_if_known(deps, name)
    if group is None:
        raise no_group(name)
    return group


def group_if_known(deps: Deps, name: str) -> SubscriptionGroupConfig | None:
    """The group, created if that is allowed, else None. Raises RequestError for a wrong name.

    A slave creates no group: it serves one that its master would create with default settings.
    """
    config = deps.settings.config
    find = deps.groups.find_uncreated if config.is_slave else deps.groups.find
    return find(name, auto_create=config.auto_create_subscription_group)


def no_group(name: str) -> RequestError:
    return RequestError(
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        f"consumer group {shorten(name)} does not exist: create it, or switch on "
        f"autoCreateSubscriptionGroup",
    )


def broker_forbids(config: BrokerConfig, verb: str) -> RequestError:
    """`verb` is "accepts" or "serves"."""
    return RequestError(
        ResponseCode.NO_PERMISSION,
        f"broker {config.broker_name} {verb} no messages: brokerPermission is "
        f"{describe_permission(config.broker_permission)}",
    )


def is_slave_now(config: BrokerConfig) -> RequestError:
    """For a request that has waited, and that only a master can serve."""
    return RequestError(
        ResponseCode.SERVICE_NOT_AVAILABLE,
        f"broker {config.broker_name} has become a slave: its master serves this request",
    )


def topic_forbids(topic: TopicConfig, verb: str) -> RequestError:
    return RequestError(
        ResponseCode.NO_PERMISSION,
        f"topic {topic.topic_name} {verb} no messages: its permission is "
        f"{describe_permission(topic.perm)}",
    )


def check_may_consume(deps: Deps, group: SubscriptionGroupConfig, topic: str) -> None:
    """Raises RequestError if an administrator has forbidden it to the group."""
    if not group.consume_enable:
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            f"consumer group {group.group_name} must not consume: consumeEnable is false",
        )
    if deps.groups.is_forbidden(group.group_name or "", topic):
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            f"consumer group {group.group_name} must not read topic {topic}: an administrator has "
            f"forbidden it",
        )


def permission_lost(topic: str, group: str) -> RequestError:
    """For a parked request whose account has lost its permission."""
    return RequestError(
        ResponseCode.NO_PERMISSION,
        f"access denied: group {shorten(group)} may no longer read topic {shorten(topic)}",
    )


def check_filter(config: BrokerConfig, subscription: Subscription) -> None:
    """Raises RequestError for a filter other than by tags while these are off."""
    if not subscription.is_by_tags and not config.enable_property_filter:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the broker does not filter by {subscription.expression_type}: "
            f"enablePropertyFilter is false",
        )
