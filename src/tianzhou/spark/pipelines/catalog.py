"""The list of pipelines and their options."""

import importlib
import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from tianzhou.errors import ConfigError
from tianzhou.spark.options import closest, option_name

_MEANING = re.compile(r"^    (\w+): [^\n]*  # ([^\n]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Entry:
    """One pipeline."""

    module: str
    summary: str
    streams: bool = False
    """Whether it runs until it is stopped; with the option once=true it does one round."""


PIPELINES = {
    "topic-stats": Entry("topic_stats", "Messages, bytes and keys per topic, group, day and hour."),
    "backlog-alarm": Entry(
        "backlog_alarm", "Alarms for groups with a large backlog.", streams=True
    ),
    "dlq-alarm": Entry("dlq_alarm", "Alarms for dead letters, with samples.", streams=True),
    "trace-latency": Entry(
        "trace_latency", "Send, store, deliver and consume latency, from message traces."
    ),
    "duplicates": Entry("duplicates", "Duplicate messages, by key or message id."),
    "reconcile": Entry("reconcile", "Compares an outbox or handled tokens with the log."),
    "archive": Entry("archive", "Archives topics to Parquet by topic and day, exactly once."),
    "replay": Entry("replay", "Sends an archive back to topics, at a limited rate."),
}


def entry(name: str) -> Entry:
    """The entry of a pipeline. Raises ConfigError that names the closest one."""
    found = PIPELINES.get(name)
    if found is None:
        raise ConfigError(f"unknown pipeline {name}{closest(name, PIPELINES)}")
    return found


def load(name: str) -> Any:  # noqa: ANN401 - a module with `Options` and `run`
    """The module of a pipeline. Raises ConfigError."""
    return importlib.import_module(f"tianzhou.spark.pipelines.{entry(name).module}")


def option_defaults(name: str) -> dict[str, object]:
    """The defaults of a pipeline's options, by option name."""
    return {option_name(field.name): field.default for field in fields(load(name).Options)}


def option_meanings(name: str) -> dict[str, str]:
    """The descriptions of a pipeline's options: the comments beside their declarations."""
    found: dict[str, str] = {}
    for kind in reversed(load(name).Options.__mro__[:-1]):
        for field, meaning in _MEANING.findall(inspect.getsource(kind)):
            found[option_name(field)] = meaning
    return found


def parse_pairs(given: Iterable[str]) -> dict[str, str]:
    """Options of a command line. Raises ConfigError."""
    pairs: dict[str, str] = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise ConfigError(f"{each}: OPTION=VALUE is expected")
        pairs[key] = value
    return pairs
