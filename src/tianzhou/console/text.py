"""Texts of the console that are shown in the language of the reader.

    Text("{broker} did not answer", broker="broker-a")

The English text is the key of the translation (`words/zh/`), and what JSON shows. With a value
`n` a text may have two forms: Text("{n} group|{n} groups", n=count).
"""

from collections.abc import Mapping


class Text:
    """An English text with values; `str` gives it in English."""

    __slots__ = ("key", "values")

    def __init__(self, key: str, /, **values: object) -> None:
        self.key = key
        self.values = values

    def __str__(self) -> str:
        return self.translated({})

    def __repr__(self) -> str:
        return f"Text({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Text) and (self.key, self.values) == (other.key, other.values)

    def __hash__(self) -> int:
        return hash(self.key)

    def translated(self, words: Mapping[str, str]) -> str:
        """The text by a table of translations; English where it has none."""
        text = words.get(self.key, self.key)
        if "n" in self.values and "|" in text:
            one, _, many = text.partition("|")
            text = one if self.values["n"] == 1 else many
        if not self.values:
            return text
        return text.format_map({name: _value(each, words) for name, each in self.values.items()})


def _value(value: object, words: Mapping[str, str]) -> str:
    if isinstance(value, Text):
        return value.translated(words)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
