"""What each broker lacks of the topics and groups of its cluster."""

import msgspec

from tianzhou.admin.changes import expansion as compared
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.listing import Listing, listing


class BrokerLacks(msgspec.Struct, frozen=True, kw_only=True):
    """One broker."""

    broker: str
    cluster: str
    topics: int
    groups: int
    missing_topics: int
    missing_groups: int


class MissingRow(msgspec.Struct, frozen=True, kw_only=True):
    """A topic or group that a broker lacks."""

    broker: str
    kind: str
    """topic or group."""
    name: str
    source: str
    """A broker that has it."""
    is_ordered: bool
    differs: bool
    """Brokers that have it have different settings."""


class Expansion(msgspec.Struct, frozen=True, kw_only=True):
    """What brokers lack, and what can be copied."""

    brokers: tuple[BrokerLacks, ...]
    warnings: tuple[str, ...]
    missing: Listing[MissingRow]


async def expansion(ask: Ask) -> Expansion:
    """Compare the topics and groups of all masters."""
    state = await compared.expansion(ask.cluster.admin)
    rows = [
        MissingRow(
            broker=each.target.label,
            kind=each.kind,
            name=each.name,
            source=each.source.label,
            is_ordered=each.is_ordered,
            differs=each.differs,
        )
        for each in state.missing
    ]
    return Expansion(
        brokers=tuple(
            BrokerLacks(
                broker=at.label,
                cluster=at.cluster,
                topics=state.counts[at][0],
                groups=state.counts[at][1],
                missing_topics=sum(
                    each.target == at and each.kind == compared.TOPIC for each in state.missing
                ),
                missing_groups=sum(
                    each.target == at and each.kind == compared.GROUP for each in state.missing
                ),
            )
            for at in state.brokers
        ),
        warnings=state.warnings,
        missing=listing(
            ask,
            rows,
            find=lambda row: (row.broker, row.name, row.kind),
            sort={
                "broker": lambda row: (row.broker, row.kind, row.name),
                "name": lambda row: (row.name, row.broker),
            },
            first="broker",
        ),
    )
