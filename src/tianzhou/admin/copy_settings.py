"""Copying the settings of topics and consumer groups from one broker to another.

Topics and groups that the target has are not changed, whatever their settings. System topics are
not copied: every broker creates its own.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tianzhou.admin.admin_client import Admin
from tianzhou.admin.changes.topics import is_reserved_topic
from tianzhou.admin.fanout import BrokerRef
from tianzhou.admin.topic_group_configs import C, SettingsRequests
from tianzhou.errors import TianzhouError


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What a copy will create."""

    missing: tuple[str, ...]
    there: int
    """How many the target already has."""
    create: Callable[[str], Awaitable[None]]

    async def run(self) -> dict[str, TianzhouError]:
        """Create what is missing, one by one; returns failures, which do not stop the rest."""
        failures: dict[str, TianzhouError] = {}
        for name in self.missing:
            try:
                await self.create(name)
            except TianzhouError as e:
                failures[name] = e
        return failures


async def copy_topics(
    admin: Admin, source: BrokerRef, target: BrokerRef, wanted: Callable[[str], bool]
) -> CopyPlan:
    """Plan to create on `target` the topics of `source` that it lacks."""
    own = {source.name, source.cluster}
    return await _plan(
        admin.topics, source, target,
        lambda name: wanted(name) and not is_reserved_topic(name) and name not in own,
    )  # fmt: skip


async def copy_groups(
    admin: Admin, source: BrokerRef, target: BrokerRef, wanted: Callable[[str], bool]
) -> CopyPlan:
    """Plan to create on `target` the groups of `source` that it lacks."""
    return await _plan(admin.groups, source, target, wanted)


async def _plan(
    requests: SettingsRequests[C],
    source: BrokerRef,
    target: BrokerRef,
    wanted: Callable[[str], bool],
) -> CopyPlan:
    configs = await requests.all_configs(source)
    there = await requests.all_configs(target)
    names = [name for name in sorted(configs) if wanted(name)]
    missing = tuple(name for name in names if name not in there)
    return CopyPlan(
        missing, len(names) - len(missing), lambda name: requests.put(target, configs[name])
    )
