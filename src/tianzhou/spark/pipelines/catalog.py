"""Which pipelines there are. Nothing here needs Spark or a database."""

import importlib
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from typing import Any, Protocol, cast

from tianzhou.errors import ConfigError

_MEANING = re.compile(r"^    (\w+): [^\n]*  # ([^\n]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Entry:
    """One pipeline."""

    module: str
    summary: str
    streams: bool = False
    """Whether it goes on until it is stopped; with the option once=true it does one round."""
    stays: bool = False
    """Whether its `run` takes `stop`, an Event that ends it."""


PIPELINES = {
    "topic-stats": Entry(
        "topic_stats", "Messages, bytes and keys per topic, group, day and hour.", stays=True
    ),
    "backlog-alarm": Entry(
        "backlog_alarm", "Alarms for groups that fall behind.", streams=True, stays=True
    ),
    "dlq-alarm": Entry(
        "dlq_alarm", "Alarms for dead letters, with samples.", streams=True, stays=True
    ),
    "trace-latency": Entry(
        "trace_latency", "Send, store, deliver and consume times, from message traces."
    ),
    "duplicates": Entry("duplicates", "Messages that are there more than once, by key or id."),
    "reconcile": Entry("reconcile", "Outbox or handled tokens against the log: missing, extra."),
    "archive": Entry(
        "archive", "Topics to Parquet by topic and day, each message once.", stays=True
    ),
    "replay": Entry("replay", "An archive back into topics, at a chosen rate."),
}


class PipelineModule(Protocol):
    """What a module of a pipeline has."""

    Options: type[Any]
    run: Callable[..., Any]


def entry(name: str) -> Entry:
    """Raises ConfigError that names the nearest."""
    found = PIPELINES.get(name)
    if found is None:
        nearest = get_close_matches(name, PIPELINES, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]}?" if nearest else f"known are {names()}"
        raise ConfigError(f"there is no pipeline {name}; {hint}")
    return found


def names() -> str:
    """All of them, for people."""
    return ", ".join(PIPELINES)


def load(name: str) -> PipelineModule:
    """The module of a pipeline. Raises ConfigError."""
    module = entry(name).module
    return cast("PipelineModule", importlib.import_module(f"tianzhou.spark.pipelines.{module}"))


def option_defaults(name: str) -> dict[str, object]:
    """The options of a pipeline and their defaults, by the names that users write."""
    from tianzhou.spark.options import option_name

    found: dict[str, object] = {}
    for field in fields(load(name).Options):
        default: object = field.default if field.default is not MISSING else None
        found[option_name(field.name)] = default
    return found


def option_meanings(name: str) -> dict[str, str]:
    """What the options of a pipeline mean: the words beside them, where they are declared."""
    from tianzhou.spark.options import option_name

    found: dict[str, str] = {}
    for kind in reversed(load(name).Options.__mro__[:-1]):
        for field, words in _MEANING.findall(inspect.getsource(kind)):
            found[option_name(field)] = words
    return found


def parse_pairs(given: Iterable[str]) -> dict[str, str]:
    """Options as they stand on a command line. Raises ConfigError."""
    pairs: dict[str, str] = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise ConfigError(f"{each}: OPTION=VALUE is expected")
        pairs[key] = value
    return pairs
