"""Measurements and plot of the demonstration."""

import re
import subprocess
from pathlib import Path

import pytest

from tianzhou.cli.demo import plot
from tianzhou.cli.demo.figures import Interval, Measurements, percentile
from tianzhou.cli.demo.run import next_commands

PNG = b"\x89PNG\r\n\x1a\n"


def test_measurements_are_split_into_intervals() -> None:
    figures = Measurements()
    figures.sent_s += [0.0, 0.1, 0.4, 0.6]
    figures.received += [(0.2, 5.0), (0.3, 1.0), (0.45, 3.0)]
    first, second = figures.intervals(0.5)
    assert first == Interval(0.25, 6.0, 6.0, 3.0, 5.0)
    assert second == Interval(0.75, 2.0, 0.0, None, None)


def test_no_measurements_give_one_empty_interval() -> None:
    assert Measurements().intervals(1.0) == [Interval(0.5, 0.0, 0.0, None, None)]


def test_percentile_is_a_measured_value() -> None:
    assert percentile([], 0.5) is None
    assert percentile([1.0], 0.99) == 1.0
    values = [float(number) for number in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.99)) == (51.0, 100.0)


def test_the_plot_is_a_png(tmp_path: Path) -> None:
    intervals = [Interval(0.1, 10.0, 8.0, 1.0, 2.0), Interval(0.3, 20.0, 0.0, None, None)]
    path = tmp_path / "plots" / "demo.png"
    plot.save(path, intervals, "a title")
    assert path.read_bytes().startswith(PNG)


def test_next_commands_work_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIANZHOU_CONFIG_DIR", str(tmp_path))
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # a shell that knows nothing of the environment
    commands = next_commands("127.0.0.1:9876", has_spark=False)
    assert not any("pipeline" in each or "--namesrv" in each for each in commands)
    ran = subprocess.run(commands[-1], shell=True, capture_output=True, text=True, check=False)  # noqa: S602 - as a user would
    assert ran.returncode == 0, ran
    assert "Usage: tianzhou" in ran.stdout
    with_spark = next_commands("127.0.0.1:9876", has_spark=True)
    assert any("pipeline run" in each for each in with_spark)


@pytest.mark.parametrize("variable", ["a:9876", ""])
def test_next_commands_name_other_nameservers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("TIANZHOU_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("NAMESRV_ADDR", variable)
    port = 9876 if variable else 19876
    top = next_commands(f"127.0.0.1:{port}", has_spark=False)[0]
    assert top.endswith(f"cluster top --namesrv 127.0.0.1:{port}")


def test_index_page_links_all_pages() -> None:
    docs = Path(__file__).resolve().parents[4] / "docs"
    links = set(re.findall(r"\]\(([^)#]+)", (docs / "index.md").read_text()))
    pages = {path.name for path in docs.glob("*.md")} - {"index.md"}
    assert pages <= links
    assert all((docs / link).is_file() for link in links)
