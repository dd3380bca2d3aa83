"""Commands on narrow screens: every number, address and id that a table holds is there, whole."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.text import Text
from tests.support.command_line import Cli
from tests.support.terminal import Terminal, lines_of

from tianzhou.cli.shared import output
from tianzhou.testing import Cluster

COMMANDS = [
    "cluster list", "cluster show", "cluster top --once", "cluster latency --once --count 1",
    "broker list", "broker show broker-0", "topic list", "topic show orders", "topic route orders",
    "group list", "group show billing", "offset show billing",
    "offset reset billing orders --to earliest --dry-run", "namesrv list",
    "message query orders --from 2020-01-01 --limit 5", "message send orders hello", "dlq list",
    "doctor --wait 0",
]  # fmt: skip
WIDTHS = (60, 80, 120)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2, topics={"orders": 2, "a-topic-with-a-rather-long-name": 1}) as it:
        cli = Cli(it.namesrv_address)
        cli("message", "send", "orders", "x", "--count", "5")
        cli("group", "create", "billing")
        cli("offset", "reset", "billing", "orders", "--to", "earliest", "--yes")
        yield it


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What tables are made of; all figures are made large."""
    monkeypatch.setenv("TIANZHOU_CONFIG_DIR", str(tmp_path))
    made: list[str] = []
    real = output.cell

    def large(value: output.Cell) -> Text:
        if isinstance(value, int | float) and not isinstance(value, bool):
            value += 987_654_321_012
        found = real(value)
        made.append(found.plain)
        return found

    monkeypatch.setattr(output, "cell", large)
    return made


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_value_is_truncated(
    cluster: Cluster,
    cells: list[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    width: int,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    ran = Cli(cluster.namesrv_address)(*command.split())
    words = set(re.split(r"\s+", ran.out))
    for cell in cells:
        for word in cell.split():
            assert word in words or len(word) > width, (word, ran.out)
    assert "…" not in ran.out
    assert all(len(line) <= width for line in ran.out.splitlines() if "─" in line)


@pytest.mark.parametrize("width", WIDTHS)
def test_addresses_are_not_wrapped_on_a_terminal(
    cluster: Cluster, tmp_path: Path, width: int
) -> None:
    place = {
        "NAMESRV_ADDR": cluster.namesrv_address, "TIANZHOU_CONFIG_DIR": str(tmp_path),
    }  # fmt: skip
    terminal = Terminal(["cluster", "show"], place, columns=width)
    try:
        assert terminal.ended() == 0
        lines = lines_of(terminal.seen)
    finally:
        terminal.close()
    words = {word for line in lines for word in line.split()}
    assert set(cluster.broker_addresses.values()) <= words, "\n".join(lines)
    assert all(len(line) <= width for line in lines)
