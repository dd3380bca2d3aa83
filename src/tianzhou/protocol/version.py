"""RocketMQ's version numbers: the `version` of a header is an ordinal in the list of all releases.

RocketMQ lists its releases ahead of time, each preceded by its snapshot: 3.0.0 in all its betas,
3.0.1 to 3.0.15, then ten releases per minor version (nine from 3.3 to 3.9, which begin at .1) up to
5.9.9, and one entry for everything later. Programs compare ordinals to learn what the peer can do.
"""

from collections.abc import Iterator

HIGHER_VERSION = "HIGHER_VERSION"


def _release_names() -> Iterator[str]:
    yield from ("V3_0_0_SNAPSHOT", "V3_0_0_ALPHA1")
    yield from (f"V3_0_0_BETA{beta}" for beta in range(1, 6))
    for beta in range(6, 10):
        yield from (f"V3_0_0_BETA{beta}_SNAPSHOT", f"V3_0_0_BETA{beta}")
    yield "V3_0_0_FINAL"
    for major, minor, patch in _regular_releases():
        yield from (f"V{major}_{minor}_{patch}_SNAPSHOT", f"V{major}_{minor}_{patch}")
    yield HIGHER_VERSION


def _regular_releases() -> Iterator[tuple[int, int, int]]:
    yield from ((3, 0, patch) for patch in range(1, 16))
    for minor in range(1, 10):
        yield from ((3, minor, patch) for patch in range(0 if minor < 3 else 1, 10))
    for major in (4, 5):
        for minor in range(10):
            yield from ((major, minor, patch) for patch in range(10))


VERSION_NAMES: tuple[str, ...] = tuple(_release_names())
"""Every name RocketMQ has reserved, by ordinal."""

_ORDINALS = {name: ordinal for ordinal, name in enumerate(VERSION_NAMES)}


def version_name(ordinal: int) -> str:
    """The name of an ordinal ("V4_9_7"); one outside the table is legal and named HIGHER_VERSION.

    Negative ordinals, which only a broken peer sends, are named so too.
    """
    return VERSION_NAMES[ordinal] if 0 <= ordinal < len(VERSION_NAMES) else HIGHER_VERSION


def version_ordinal(name: str) -> int:
    """The ordinal of a name as `version_name` gives it. Raises ValueError for any other name."""
    try:
        return _ORDINALS[name]
    except KeyError:
        raise ValueError(f"{name!r} is no RocketMQ version; write it like V4_9_7") from None


# Thresholds that RocketMQ's programs test.
V3_0_11 = version_ordinal("V3_0_11")
"""From here on a broker registers with filter servers and a body that the nameserver reads."""
V3_1_8_SNAPSHOT = version_ordinal("V3_1_8_SNAPSHOT")
"""The first version whose consumers support GET_CONSUMER_RUNNING_INFO."""
V3_4_9 = version_ordinal("V3_4_9")
"""From here on `maxReconsumeTimes` in a request overrides that of the group."""
V4_9_4 = version_ordinal("V4_9_4")
"""From here on a client reads strict JSON and the nameserver sends it nothing else."""
V5_0_0 = version_ordinal("V5_0_0")
"""From here on the binary form of a registration also carries the static topic mappings."""

CURRENT_VERSION = version_ordinal("V4_9_7")
"""What our own headers say.

High enough for strict JSON from a stock nameserver (V4_9_4), below V5_0_0, whose registration body
has one more section, and below V5_3_2, whose clients a stock broker may answer with GO_AWAY.
"""
