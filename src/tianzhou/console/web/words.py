"""Languages: which one a request gets, and its table of translations."""

import functools
import json
from collections.abc import Mapping
from pathlib import Path

LANGUAGES = {"en": "English", "zh": "中文"}
_FOLDER = Path(__file__).resolve().parents[1] / "words"


@functools.cache
def words_of(language: str) -> Mapping[str, str]:
    """English text to translation; empty for English."""
    if language == "en" or language not in LANGUAGES:
        return {}
    words: dict[str, str] = {}
    for path in sorted((_FOLDER / language).glob("*.json")):
        words.update(json.loads(path.read_text("utf-8")))
    return words


def language_of(person: str, cookie: str, accepted: str) -> str:
    """The language of a person, else of the cookie, else what the browser accepts first."""
    for each in (person, cookie):
        if each in LANGUAGES:
            return each
    offers: list[tuple[float, str]] = []
    for part in accepted[:500].split(","):
        name, _, more = part.strip().partition(";")
        offers.append((-_quality(more), name.strip().partition("-")[0].lower()))
    for _, name in sorted(offers, key=lambda offer: offer[0]):
        if name in LANGUAGES:
            return name
    return "en"


def _quality(text: str) -> float:
    try:
        return float(text.strip().removeprefix("q=") or 1)
    except ValueError:
        return 0.0
