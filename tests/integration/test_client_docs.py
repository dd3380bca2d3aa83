"""Every example of the pages for users of the client runs, against a real cluster."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tianzhou.testing import Cluster

DOCS = Path(__file__).parents[2] / "docs"
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
    with Cluster(recallMessageEnable="true", traceTopicEnable="true") as it:
        yield it


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 8


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
