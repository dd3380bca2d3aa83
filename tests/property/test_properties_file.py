"""Laws of the properties format: what is written reads back, and an edit changes what it should."""

from hypothesis import given
from hypothesis import strategies as st

from tianzhou.config.properties import edit_properties, format_property, parse_properties
from tianzhou.errors import ConfigError

# Characters that mean something to the format are drawn far more often than all the others.
SPECIAL = st.sampled_from(
    [*"\\=:#! \t\f\r\nau0", "\r\n", "\\\n", "\\\r\n", "\\u0041", "\\uD83D\\uDE00", "é", "天"]
)
TEXTS = st.lists(SPECIAL | st.characters(exclude_categories=["Cs"]), max_size=40).map("".join)
VALUES = TEXTS
KEYS = TEXTS.filter(bool)


def pairs_of(text: str) -> dict[str, str]:
    return {found.key: found.value for found in parse_properties(text, "test")}


@given(st.dictionaries(KEYS, VALUES, max_size=8))
def test_written_pairs_read_back(pairs: dict[str, str]) -> None:
    text = "\n".join(format_property(key, value) for key, value in pairs.items())
    assert text.isascii()
    assert pairs_of(text) == pairs


@given(TEXTS)
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = parse_properties(text, "test")
    except ConfigError:
        assert "\\u" in text
        return
    assert [line for _, _, line in found] == sorted(line for _, _, line in found)


@given(TEXTS, st.dictionaries(KEYS, VALUES, max_size=4))
def test_an_edit_changes_exactly_its_own_pairs(text: str, changes: dict[str, str]) -> None:
    try:
        before = pairs_of(text)
    except ConfigError:
        return
    after = pairs_of(edit_properties(text, changes))
    # A lone backslash at the very end is an empty key for Java; no program can mean it.
    before.pop("", None)
    after.pop("", None)
    assert after == before | changes


@given(TEXTS, st.dictionaries(KEYS, VALUES, max_size=4))
def test_an_edit_is_final(text: str, changes: dict[str, str]) -> None:
    try:
        once = edit_properties(text, changes)
    except ConfigError:
        return
    assert edit_properties(once, changes) == once


@given(TEXTS)
def test_an_edit_without_changes_is_none(text: str) -> None:
    try:
        assert edit_properties(text, {}) == text
    except ConfigError:
        return
