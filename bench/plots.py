"""Plots for docs/performance.md, as SVG so that text stays text."""
# matplotlib leaves its keyword arguments untyped.
# pyright: reportUnknownMemberType=false

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

_OURS, _THEIRS = "#c0392b", "#7f8c8d"


Bars = Sequence[tuple[str, float, float]]
"""Label, Tianzhou's value, Apache's value."""


class Bar(NamedTuple):
    """A value of a series, and its target."""

    series: str
    value: float
    aim: float | None = None


Group = tuple[str, Sequence[Bar]]
"""Label, and the bars of its group."""

_SHADES = (_OURS, "#e59866", "#f5cba7")


def pairs(path: Path, title: str, unit: str, rows: Bars, names: tuple[str, str]) -> None:
    """One pair of bars per row, on a logarithmic axis."""
    panels(path, title, [(unit, rows)], names)


def panels(
    path: Path, title: str, parts: Sequence[tuple[str, Bars]], names: tuple[str, str]
) -> None:
    """Several such plots of the same rows, side by side."""
    row_count = len(parts[0][1])
    width = 5.0 + 3.0 * len(parts)
    figure, grid = plt.subplots(
        1, len(parts), sharey=True, squeeze=False, figsize=(width, 0.42 * row_count + 1.4)
    )
    positions = range(row_count)
    for axes, (unit, rows) in zip(grid[0], parts, strict=True):
        for shift, column, color, name in ((-0.2, 1, _OURS, names[0]), (0.2, 2, _THEIRS, names[1])):
            values = [float(row[column]) for row in rows]
            axes.barh(
                [position + shift for position in positions], values, 0.38, color=color, label=name
            )
        axes.set_xscale("log")
        axes.set_xlabel(unit)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    first = grid[0][0]
    first.set_yticks(list(positions), [row[0] for row in parts[0][1]])
    first.invert_yaxis()
    first.set_title(title, loc="left", pad=22)
    # Beside the bars, which may reach into every corner.
    grid[0][-1].legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
    _save(figure, path)


def marked(path: Path, title: str, unit: str, groups: Sequence[Group], form: str) -> None:
    """Groups of bars with marks at their targets, and their values as text beside them.

    The last series is the reference of the others.
    """
    series = list(dict.fromkeys(bar.series for _, bars in groups for bar in bars))
    colors = dict(zip(series, _SHADES, strict=False)) | {series[-1]: _THEIRS}
    bar_count = sum(len(bars) for _, bars in groups)
    figure, axes = plt.subplots(figsize=(8.0, 0.26 * bar_count + 0.2 * len(groups) + 1.5))
    position, labels = 0.0, list[tuple[float, str]]()
    for label, bars in groups:
        labels.append((position + (len(bars) - 1) / 2, label))
        for bar in bars:
            axes.barh(position, bar.value, 0.9, color=colors[bar.series])
            # In a separate column: the mark may be at the end of the bar.
            axes.text(
                1.1, position, form.format(bar.value), ha="right", va="center", fontsize=8,
                transform=axes.get_yaxis_transform(),
            )  # fmt: skip
            if bar.aim is not None:
                axes.plot([bar.aim, bar.aim], [position - 0.5, position + 0.5], color="black", lw=2)
            position += 1
        position += 0.8
    for name, color in colors.items():
        axes.barh(0, 0, color=color, label=name)
    axes.plot([], [], color="black", lw=2, label="aim")
    axes.set_yticks([at for at, _ in labels], [label for _, label in labels])
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.set_xlabel(unit)
    axes.set_title(title, loc="left", pad=22)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(
        frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=len(series) + 1,
        fontsize=8, borderaxespad=0.1,
    )  # fmt: skip
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a date and with a fixed seed for ids, the same figures give the same file.
    mpl.rcParams["svg.hashsalt"] = "tianzhou"
    # Text stays text, in the font of the reader's browser.
    mpl.rcParams["svg.fonttype"] = "none"
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
