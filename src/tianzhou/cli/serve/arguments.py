"""Parsing of the --set flags of servers."""

from collections.abc import Iterable

from tianzhou.config.settings import Given
from tianzhou.errors import ConfigError


def parse_pairs(texts: Iterable[str]) -> list[Given]:
    """The settings of --set KEY=VALUE flags. Raises ConfigError."""
    given: list[Given] = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {text}: write KEY=VALUE")
        given.append(Given(key.strip(), value, "flag --set", deliberate=True))
    return given
