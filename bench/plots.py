"""Plots for docs/performance.md, as SVG so that text stays text."""
# matplotlib leaves its keyword arguments untyped.
# pyright: reportUnknownMemberType=false

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt

_OURS, _THEIRS = "#c0392b", "#7f8c8d"


def pairs(
    path: Path,
    title: str,
    unit: str,
    rows: Sequence[tuple[str, float, float]],
    names: tuple[str, str],
) -> None:
    """One pair of bars per row (label, ours, theirs), on a logarithmic axis."""
    figure, axes = plt.subplots(figsize=(8, 0.5 * len(rows) + 1.2))
    places = range(len(rows))
    for shift, column, color, name in ((-0.2, 1, _OURS, names[0]), (0.2, 2, _THEIRS, names[1])):
        values = [float(row[column]) for row in rows]
        axes.barh([place + shift for place in places], values, 0.38, color=color, label=name)
    axes.set_yticks(list(places), [row[0] for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel(unit)
    axes.set_title(title, loc="left")
    axes.legend(frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a date and with a fixed seed for ids, the same figures give the same file.
    mpl.rcParams["svg.hashsalt"] = "tianzhou"
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
