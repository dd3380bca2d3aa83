"""The first page: the clusters of this console."""

import msgspec

from tianzhou.console.web.ask import Ask


class ClusterRow(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster."""

    name: str
    namesrv: str


class Clusters(msgspec.Struct, frozen=True, kw_only=True):
    """The clusters that this console shows."""

    clusters: tuple[ClusterRow, ...]


async def clusters(ask: Ask) -> Clusters:
    """The clusters that this console shows."""
    return Clusters(
        clusters=tuple(
            ClusterRow(name=each.name, namesrv=each.settings.namesrv)
            for each in ask.console.clusters.values()
        )
    )
