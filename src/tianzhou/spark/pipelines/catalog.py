"""Which pipelines there are. Nothing here needs Spark or a database."""

import importlib
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from typing import Any, Protocol, cast

from tianzhou.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Entry:
    """One pipeline."""

    module: str
    summary: str
    streams: bool = False
    """Whether it goes on until it is stopped; with the option once=true it does one round."""


PIPELINES = {
    "topic-stats": Entry("topic_stats", "Messages, bytes and keys per topic, group, day and hour."),
    "backlog-alarm": Entry("backlog_alarm", "Alarms for groups that fall behind.", streams=True),
    "dlq-alarm": Entry("dlq_alarm", "Alarms for dead letters, with samples.", streams=True),
    "trace-latency": Entry(
        "trace_latency", "Send, store, deliver and consume times, from message traces."
    ),
    "duplicates": Entry("duplicates", "Messages that are there more than once, by key or id."),
    "reconcile": Entry("reconcile", "Outbox or handled tokens against the log: missing, extra."),
    "archive": Entry("archive", "Topics to Parquet by topic and day, each message once."),
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
        hint = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(PIPELINES)}"
        raise ConfigError(f"there is no pipeline {name}; {hint}")
    return found


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
