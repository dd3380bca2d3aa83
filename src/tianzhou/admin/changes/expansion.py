"""What brokers lack of the topics and consumer groups of their cluster, and giving it to them.

A broker that joins a cluster has none of its topics and groups (unless `copyMetadataOnJoin` is
set), so that it gets no messages. Ordered topics are listed but only copied if they are named: more
queues change the order of their keys.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tianzhou.admin.admin_client import Admin
from tianzhou.admin.changes.topics import is_reserved_topic
from tianzhou.admin.clusters import choose
from tianzhou.admin.fanout import BrokerRef, gather_any
from tianzhou.errors import TianzhouError
from tianzhou.names import is_internal_group
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.topics import TopicConfig

TOPIC, GROUP = "topic", "group"
"""Values of `Missing.kind`."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A topic or group that a broker lacks."""

    target: BrokerRef
    kind: str
    name: str
    source: BrokerRef
    """A broker that has it; its settings are copied."""
    config: TopicConfig | SubscriptionGroupConfig
    is_ordered: bool = False
    differs: bool = False
    """Whether brokers that have it have different settings."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """What the masters of all clusters lack."""

    brokers: tuple[BrokerRef, ...]
    """The masters that answered."""
    counts: Mapping[BrokerRef, tuple[int, int]]
    """Topics and groups that each has."""
    missing: tuple[Missing, ...]
    warnings: tuple[str, ...] = ()
    """Brokers that did not answer: what they lack is not known, what only they have neither."""


async def expansion(admin: Admin) -> Expansion:
    """Compare the tables of all masters. Raises TianzhouError if no nameserver answers."""
    masters = choose(await admin.clusters.info(), masters=True)
    topics = await gather_any(masters, admin.topics.all_configs)
    groups = await gather_any(masters, admin.groups.all_configs)
    answered = tuple(at for at in masters if at in topics.responses and at in groups.responses)
    reserved = {name for at in masters for name in (at.name, at.cluster)}
    own_topics = {
        at: {
            name: config
            for name, config in topics.responses[at].items()
            if not is_reserved_topic(name) and name not in reserved
        }
        for at in answered
    }
    own_groups = {
        at: {
            name: config
            for name, config in groups.responses[at].items()
            if not is_internal_group(name)
        }
        for at in answered
    }
    return Expansion(
        answered,
        {at: (len(own_topics[at]), len(own_groups[at])) for at in answered},
        (*_missing(TOPIC, own_topics), *_missing(GROUP, own_groups)),
        tuple(dict.fromkeys((*topics.warnings, *groups.warnings))),
    )


def _missing(
    kind: str, tables: Mapping[BrokerRef, Mapping[str, TopicConfig | SubscriptionGroupConfig]]
) -> list[Missing]:
    """What each broker lacks of the others of its cluster, by broker and name."""
    rows: list[Missing] = []
    for cluster in sorted({at.cluster for at in tables}):
        own = {at: table for at, table in tables.items() if at.cluster == cluster}
        for name in sorted({name for table in own.values() for name in table}):
            having = [at for at in own if name in own[at]]
            config = own[having[0]][name]
            rows += [
                Missing(
                    target,
                    kind,
                    name,
                    having[0],
                    config,
                    is_ordered=isinstance(config, TopicConfig) and config.order,
                    differs=any(own[at][name] != config for at in having),
                )
                for target in own
                if name not in own[target]
            ]
    return sorted(rows, key=lambda each: (each.target, each.kind, each.name))


@dataclass(frozen=True, slots=True)
class Copied:
    """The result for one topic or group."""

    missing: Missing
    problem: str = ""
    """Empty: the broker has it now."""


async def copy(
    admin: Admin, wanted: Iterable[Missing], on_step: Callable[[Copied], None] | None = None
) -> list[Copied]:
    """Create what brokers lack, one by one; a failure does not stop the rest.

    What a broker has got meanwhile is not changed. A broker that does not answer three times in a
    row is not asked again.
    """
    results: list[Copied] = []
    silent: dict[BrokerRef, int] = {}
    for each in wanted:
        if silent.get(each.target, 0) >= 3:
            result = Copied(each, "not tried: the broker did not answer three times in a row")
        else:
            result = Copied(each, await _copy_one(admin, each))
            silent[each.target] = silent.get(each.target, 0) + 1 if result.problem else 0
        results.append(result)
        if on_step is not None:
            on_step(result)
    return results


async def _copy_one(admin: Admin, each: Missing) -> str:
    try:
        if isinstance(each.config, TopicConfig):
            if await admin.topics.config(each.target, each.name) is None:
                await admin.topics.put(each.target, each.config)
        elif await admin.groups.config(each.target, each.name) is None:
            await admin.groups.put(each.target, each.config)
    except TianzhouError as e:
        return str(e) or type(e).__name__
    return ""
