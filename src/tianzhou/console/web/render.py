"""Templates: the content of a page, and the frame around it. Everything is escaped.

A template gets `view` (the struct of the page), `ask`, `_` (translates), `url`, `same`, and the
filters figure, size, percent, duration, moment. A `Text` is translated wherever it is printed.
"""

import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import (
    Environment,
    FileSystemLoader,
    StrictUndefined,
    pass_context,
)
from jinja2.runtime import Context
from markupsafe import Markup

from tianzhou.console.text import Text
from tianzhou.console.web import figures, navigation, static
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.route import Route
from tianzhou.console.web.words import LANGUAGES, words_of

TEMPLATES = Path(__file__).resolve().parents[1] / "templates"


@functools.cache
def environment() -> Environment:
    """The templates."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_translated,
    )
    filters: dict[str, Any] = made.filters  # pyright: ignore[reportAssignmentType]
    filters.update(
        figure=figures.figure, size=figures.size, percent=figures.percent,
        duration=figures.duration, moment=_moment, iso=_iso, json_attribute=_json_attribute,
        spark=spark,
    )  # fmt: skip
    return made


def content(ask: Ask, template: str, view: object, **more: object) -> str:
    """The inner part of a page."""
    return environment().get_template(template).render(**names(ask), view=view, **more)


def whole_page(ask: Ask, routes: Iterable[Route], inner: str, title: Text, **more: object) -> str:
    """The frame with the inner part; `more` has `notice` or nothing."""
    cluster = ask.path.get("cluster", "") if ask.path.get("cluster") in ask.console.clusters else ""
    if not cluster and len(ask.console.clusters) == 1:
        cluster = next(iter(ask.console.clusters))
    inside, outside = navigation.entries(ask, routes, cluster)
    given = names(ask) | {
        "inner": Markup(inner),  # noqa: S704 - rendered by `content`, which escapes
        "title": title,
        "cluster": cluster,
        "inside": inside,
        "outside": outside,
        "languages": LANGUAGES,
        "notice": None,
        **more,
    }
    return environment().get_template("base.html").render(**given)


def part_of_page(ask: Ask, inner: str, mark: str) -> str:
    """`main#page` with the inner part, for htmx; `mark` is its ETag."""
    template = environment().get_template("page.html")
    return template.render(**names(ask), inner=Markup(inner), mark=mark)  # noqa: S704 - see above


def outside_page(ask: Ask, inner: str, title: Text) -> str:
    """The frame without navigation, for strangers."""
    given = names(ask) | {"title": title, "languages": LANGUAGES}
    template = environment().get_template("outside.html")
    return template.render(**given, inner=Markup(inner))  # noqa: S704 - see above


def names(ask: Ask) -> dict[str, Any]:
    """What every template gets."""
    words = words_of(ask.language)

    def translate(key: str, /, **values: object) -> str:
        return Text(key, **values).translated(words)

    def file_address(name: str) -> str:
        return f"{ask.console.settings.root_path}{static.address(name)}"

    return {
        "ask": ask,
        "_": translate,
        "words": words,
        "url": ask.url,
        "same": ask.same,
        "static": file_address,
    }


@pass_context
def _translated(context: Context, value: object) -> object:
    return value.translated(context["words"]) if isinstance(value, Text) else value


@pass_context
def _moment(context: Context, ms: int | None) -> str:
    return figures.moment(ms, context["ask"].zone)


@pass_context
def _iso(context: Context, ms: int) -> str:
    return figures.iso(ms, context["ask"].zone)


@pass_context
def _json_attribute(context: Context, value: object) -> str:
    """A value for a `data-` attribute, which is escaped like all text; its texts are translated."""

    def translated(each: object) -> object:
        return each.translated(context["words"]) if isinstance(each, Text) else str(each)

    return json.dumps(msgspec.to_builtins(value, enc_hook=translated), separators=(",", ":"))


SPARK_WIDTH, SPARK_HEIGHT = 96, 24


def spark(values: Iterable[float | None]) -> str:
    """The points of a sparkline; unknown values are left out."""
    listed = list(values)
    known = [each for each in listed if each is not None]
    if len(known) < 2:
        return ""
    low, high = min(*known, 0), max(known)
    span = (high - low) or 1
    step = SPARK_WIDTH / (len(listed) - 1)
    return " ".join(
        f"{index * step:.1f},{SPARK_HEIGHT - 2 - (value - low) / span * (SPARK_HEIGHT - 4):.1f}"
        for index, value in enumerate(listed)
        if value is not None
    )
