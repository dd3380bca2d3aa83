"""The producer groups of a cluster, with their clients on line."""

import msgspec

from tianzhou.console.collect.snapshot import Member, ProducerGroup
from tianzhou.console.views.cluster.state import ClusterState, snapshot_of, state_of
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.listing import Listing, listing

CLIENTS_SHOWN = 20


class ProducerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One producer group."""

    name: str
    client_count: int
    clients: tuple[Member, ...]
    """The first ones."""
    versions: tuple[str, ...]
    languages: tuple[str, ...]


class Producers(msgspec.Struct, frozen=True, kw_only=True):
    """Producer groups with clients on line."""

    state: ClusterState
    is_known: bool
    """False: not read yet, or no broker has said who produces."""
    producers: Listing[ProducerRow]


async def producers(ask: Ask) -> Producers:
    """Producer groups with clients on line."""
    snapshot = snapshot_of(ask)
    return Producers(
        state=state_of(ask, snapshot),
        is_known=snapshot.producers is not None,
        producers=listing(
            ask,
            [_row(each) for each in snapshot.producers or () if ask.scope.sees(each.name)],
            find=lambda row: (row.name, *(_text(each) for each in row.clients)),
            sort={"name": lambda row: row.name, "clients": lambda row: row.client_count},
            first="name",
        ),
    )


def _row(group: ProducerGroup) -> ProducerRow:
    return ProducerRow(
        name=group.name,
        client_count=len(group.members),
        clients=group.members[:CLIENTS_SHOWN],
        versions=tuple(sorted({each.version for each in group.members if each.version})),
        languages=tuple(sorted({each.language for each in group.members if each.language})),
    )


def _text(client: Member) -> str:
    return f"{client.client_id} {client.address} {client.version} {client.language}"
