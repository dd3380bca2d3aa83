"""The tables of docs/client.md against the stock Java client: no public method is left out."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.apache import jars

pytestmark = pytest.mark.apache

DOCUMENT = Path(__file__).parents[2] / "docs" / "client.md"
VERSION = "5.5.0"
CLASSES = (
    "client.ClientConfig",
    "client.producer.DefaultMQProducer",
    "client.producer.TransactionMQProducer",
    "client.consumer.DefaultMQPushConsumer",
    "client.consumer.DefaultLitePullConsumer",
)
GETTER = re.compile(r"(get|is)[A-Z]\w*")
"""Getters of a program's own settings; the page describes them all in one sentence."""
EVERY_OBJECT_HAS = {"equals", "hashCode", "toString"}
OF_THE_GRPC_CLIENT = {"setAwaitDuration", "setSubscriptionExpressions"}
"""Setters of Java's SimpleConsumer, whose classes are in other jars, which are not fetched."""


def documented_names() -> set[str]:
    """The names in code style in the first column of the tables."""
    text = DOCUMENT.read_text()
    section = text[text.index("\n## From the Java client") : text.index("\n## Differences between")]
    rows = [line.replace(r"\|", "") for line in section.splitlines() if line.startswith("| ")]
    code = [span for row in rows for span in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    return {name for span in code for name in re.findall(r"\w+", span)}


def public_methods(name: str) -> set[str]:
    """Methods that a class declares, without constructors."""
    javap = jars.need_program("javap", "default-jdk-headless")
    class_path, full_name = f"{jars.jar_directory(VERSION)}/*", f"org.apache.rocketmq.{name}"
    shown = subprocess.run(
        [javap, "-public", "-cp", class_path, full_name],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return set(re.findall(r" (\w+)\(", shown))


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_method_has_a_row(apache: None, name: str) -> None:
    methods = public_methods(name)
    assert len(methods) > 5, methods
    methods_of_java = {each for each in methods if not GETTER.fullmatch(each)} - EVERY_OBJECT_HAS
    assert sorted(methods_of_java - documented_names()) == []


def test_tables_list_only_setters_of_java(apache: None) -> None:
    """Renamed or missing setters would mislead readers."""
    others = (
        "client.consumer.DefaultMQPullConsumer",
        "client.consumer.listener.ConsumeOrderlyContext",
        "client.trace.AsyncTraceDispatcher",
        "common.message.Message",
        "common.message.MessageExt",
    )
    known: set[str] = set()
    for each in (*CLASSES, *others):
        known |= public_methods(each)
    setters = {name for name in documented_names() if re.fullmatch(r"set[A-Z]\w*", name)}
    assert sorted(setters - known - OF_THE_GRPC_CLIENT) == []
