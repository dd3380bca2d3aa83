"""Translations: none is missing, none is left over, and all have the values of their text."""

import json

import pytest

from tests.support.console.texts import FOLDER, is_only_names, names_in, texts
from tianzhou.console.text import Text
from tianzhou.console.web.words import LANGUAGES, language_of, words_of

OTHERS = [each for each in LANGUAGES if each != "en"]


@pytest.mark.parametrize("language", OTHERS)
def test_every_text_is_translated(language: str) -> None:
    words = words_of(language)
    wanted = {text: place for text, place in texts().items() if not is_only_names(text)}
    missing = {text: place for text, place in wanted.items() if text not in words}
    assert not missing, json.dumps(sorted(missing), ensure_ascii=False, indent=1)


@pytest.mark.parametrize("language", OTHERS)
def test_no_translation_is_left_over(language: str) -> None:
    assert not sorted(words_of(language).keys() - texts().keys())


@pytest.mark.parametrize("language", OTHERS)
def test_translations_have_the_values_of_their_text(language: str) -> None:
    words = words_of(language)
    assert not {key: word for key, word in words.items() if names_in(key) != names_in(word)}


@pytest.mark.parametrize("language", OTHERS)
def test_no_text_is_in_two_files(language: str) -> None:
    files = sorted((FOLDER / "words" / language).glob("*.json"))
    keys = [key for path in files for key in json.loads(path.read_text("utf-8"))]
    assert len(keys) == len(set(keys)), sorted({key for key in keys if keys.count(key) > 1})


def test_a_text_in_both_languages() -> None:
    text = Text("{n} person may log in|{n} people may log in", n=1)
    assert str(text) == "1 person may log in"
    assert str(Text(text.key, n=1234)) == "1,234 people may log in"
    assert Text(text.key, n=1234).translated(words_of("zh")) == "1,234 人可以登录"
    assert Text("a text without a translation").translated(words_of("zh")).startswith("a text")


def test_values_are_not_read_as_placeholders() -> None:
    assert str(Text("There is no cluster {name}.", name="{n}")) == "There is no cluster {n}."


@pytest.mark.parametrize(
    ("person", "cookie", "accepted", "language"),
    [
        ("zh", "en", "en", "zh"),
        ("", "zh", "en-US,en", "zh"),
        ("", "", "de, zh-TW;q=0.8, en;q=0.7", "zh"),
        ("", "", "fr;q=x", "en"),
        ("", "", "", "en"),
        ("xx", "../../etc", "en;q=0.1,zh-CN;q=0.9", "zh"),
    ],
)
def test_the_language_of_a_request(person: str, cookie: str, accepted: str, language: str) -> None:
    assert language_of(person, cookie, accepted) == language
