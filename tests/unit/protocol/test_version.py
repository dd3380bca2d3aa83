"""Version ordinals and names."""

import pytest

from tianzhou.protocol.version import (
    CURRENT_VERSION,
    VERSION_NAMES,
    version_name,
    version_ordinal,
)


# Ordinals of RocketMQ's own enumeration, chosen where its rule changes.
@pytest.mark.parametrize(
    ("ordinal", "name"),
    [
        (0, "V3_0_0_SNAPSHOT"),
        (1, "V3_0_0_ALPHA1"),
        (6, "V3_0_0_BETA5"),
        (7, "V3_0_0_BETA6_SNAPSHOT"),
        (14, "V3_0_0_BETA9"),
        (15, "V3_0_0_FINAL"),
        (16, "V3_0_1_SNAPSHOT"),
        (45, "V3_0_15"),
        (46, "V3_1_0_SNAPSHOT"),
        (85, "V3_2_9"),
        (86, "V3_3_1_SNAPSHOT"),
        (121, "V3_4_9"),
        (211, "V3_9_9"),
        (212, "V4_0_0_SNAPSHOT"),
        (317, "V4_5_2"),
        (401, "V4_9_4"),
        (407, "V4_9_7"),
        (413, "V5_0_0"),
        (513, "V5_5_0"),
        (611, "V5_9_9"),
        (612, "HIGHER_VERSION"),
    ],
)
def test_ordinals_equal_rocketmqs(ordinal: int, name: str) -> None:
    assert version_name(ordinal) == name
    assert version_ordinal(name) == ordinal


def test_the_table_ends_where_rocketmqs_does() -> None:
    assert len(VERSION_NAMES) == len(set(VERSION_NAMES)) == 613


@pytest.mark.parametrize("ordinal", [613, 32767, 2**31 - 1, -1, -(2**31)])
def test_ordinals_outside_the_table_are_legal(ordinal: int) -> None:
    assert version_name(ordinal) == "HIGHER_VERSION"


@pytest.mark.parametrize("name", ["", "4.9.7", "V4_9_10", "v4_9_7"])
def test_other_names_are_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="is no RocketMQ version"):
        version_ordinal(name)


def test_our_version_is_a_4_9_that_reads_strict_json() -> None:
    assert version_ordinal("V4_9_4") <= CURRENT_VERSION < version_ordinal("V5_0_0_SNAPSHOT")
