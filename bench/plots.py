"""Plots for docs/performance.md, as SVG so that text stays text."""
# matplotlib leaves its keyword arguments untyped.
# pyright: reportUnknownMemberType=false

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt

_OURS, _THEIRS = "#c0392b", "#7f8c8d"


Bars = Sequence[tuple[str, float, float]]
"""Label, ours, theirs."""


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
    places = range(row_count)
    for axes, (unit, rows) in zip(grid[0], parts, strict=True):
        for shift, column, color, name in ((-0.2, 1, _OURS, names[0]), (0.2, 2, _THEIRS, names[1])):
            values = [float(row[column]) for row in rows]
            axes.barh([place + shift for place in places], values, 0.38, color=color, label=name)
        axes.set_xscale("log")
        axes.set_xlabel(unit)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    first = grid[0][0]
    first.set_yticks(list(places), [row[0] for row in parts[0][1]])
    first.invert_yaxis()
    first.set_title(title, loc="left")
    # Beside the bars, which may reach into every corner.
    grid[0][-1].legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a date and with a fixed seed for ids, the same figures give the same file.
    mpl.rcParams["svg.hashsalt"] = "tianzhou"
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
