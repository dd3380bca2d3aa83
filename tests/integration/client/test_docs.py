"""Every example of the pages for users of the client runs, against a real cluster."""

import dataclasses
import inspect
import re
import threading
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import pytest

from tianzhou import client
from tianzhou.testing import Cluster

DOCS = Path(__file__).parents[3] / "docs"
PAGES = ("client.md", "databases.md", "testing.md")
DEADLINE_S = 60.0


def examples() -> list[tuple[str, str]]:
    """The Python examples of the pages, each with the heading it stands under."""
    found: list[tuple[str, str]] = []
    for page in PAGES:
        heading = page
        text = (DOCS / page).read_text()
        for part in re.split(r"(?m)^(#+ .*|```python\n(?:.|\n)*?^```)$", text):
            if part.startswith("#"):
                heading = f"{page}, {part.lstrip('# ')}"
            elif part.startswith("```python"):
                found.append((heading, part.removeprefix("```python\n").removesuffix("```")))
    return found


EXAMPLES = examples()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as it:  # examples run on a broker with its defaults
        yield it


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 8


# -- names -----------------------------------------------------------------------------------------

INNER = frozenset((
    "heartbeat", "on_request", "on_route", "on_first_response", "on_first_failure", "consume_type",
    "to_wire",
    "wire_properties", "packing", "shared", "strategy", "namesrv_addresses", "topics",
    "wire_topic", "receipt", "handle_offset", "renew",
))  # fmt: skip
"""Between the parts of the client; programs have no use for them."""
BUILT_IN: tuple[type, ...] = (object, str, int, tuple, Enum)
OF_SERVERS = frozenset(("client_certificates", "mode", "client_context", "server_context"))
SETTINGS = (client.ClientSettings, client.ProducerSettings, client.PushSettings,
            client.LitePullSettings, client.SimpleSettings)  # fmt: skip


def names_in(title: str) -> set[str]:
    """All names in code style of a section and its subsections."""
    text = (DOCS / "client.md").read_text()
    section = re.split(r"(?m)^## ", text.split(f"\n## {title}\n")[1])[0]
    prose = re.sub(r"(?m)^```(.|\n)*?^```$", "", section)
    return set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`", prose))))


def public_names() -> set[str]:
    """The public names of the package and of its classes."""
    found = set(client.__all__)
    for each in (getattr(client, name) for name in client.__all__):
        if inspect.isclass(each):
            plain = {name for base in BUILT_IN if issubclass(each, base) for name in dir(base)}
            found |= {name for name in dir(each) if not name.startswith("_")} - plain
    return found - INNER - OF_SERVERS


def test_every_name_is_in_the_java_table() -> None:
    assert public_names() - names_in("From the Java client") == set()


def test_every_setting_is_documented() -> None:
    settings = {field.name for kind in SETTINGS for field in dataclasses.fields(kind)}
    assert settings - names_in("Settings of every client") == set()


@pytest.mark.parametrize(
    ("number", "heading"), [(at, heading) for at, (heading, _) in enumerate(EXAMPLES)]
)
def test_example(number: int, heading: str, cluster: Cluster) -> None:
    """Each runs as a program of its own, in a thread, with the address of the test's cluster."""
    code = EXAMPLES[number][1].replace("127.0.0.1:9876", cluster.namesrv_address)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            exec(compile(code, f"docs/{heading}", "exec"), {"__name__": "__main__"})  # noqa: S102 - our own page
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive(), f"{heading}: not done after {DEADLINE_S} s"
    if failures:
        raise AssertionError(f"the example under {heading!r} failed") from failures[0]
