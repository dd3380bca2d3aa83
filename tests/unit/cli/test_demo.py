"""What the demonstration measures, and its plot."""

from pathlib import Path

from tianzhou.cli import demo_plot
from tianzhou.cli.demo_figures import Figures, Slot, share

PNG = b"\x89PNG\r\n\x1a\n"


def test_figures_are_cut_into_spans() -> None:
    figures = Figures()
    figures.sent_s += [0.0, 0.1, 0.4, 0.6]
    figures.received += [(0.2, 5.0), (0.3, 1.0), (0.45, 3.0)]
    first, second = figures.slots(0.5)
    assert first == Slot(0.25, 6.0, 6.0, 3.0, 5.0)
    assert second == Slot(0.75, 2.0, 0.0, None, None)


def test_no_figures_are_one_empty_span() -> None:
    assert Figures().slots(1.0) == [Slot(0.5, 0.0, 0.0, None, None)]


def test_a_share_is_a_value_that_was_seen() -> None:
    assert share([], 0.5) is None
    assert share([1.0], 0.99) == 1.0
    values = [float(number) for number in range(1, 101)]
    assert (share(values, 0.5), share(values, 0.99)) == (51.0, 100.0)


def test_the_plot_is_a_png(tmp_path: Path) -> None:
    slots = [Slot(0.1, 10.0, 8.0, 1.0, 2.0), Slot(0.3, 20.0, 0.0, None, None)]
    path = tmp_path / "plots" / "demo.png"
    demo_plot.save(path, slots, "a title")
    assert path.read_bytes().startswith(PNG)
