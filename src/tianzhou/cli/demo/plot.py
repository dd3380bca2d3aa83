"""The plot of the demonstration: messages per second and latency over time."""
# matplotlib leaves its keyword arguments untyped.
# pyright: reportUnknownMemberType=false

from collections.abc import Sequence
from pathlib import Path

from tianzhou.cli.demo.figures import Interval

_SENT, _RECEIVED, _MEDIAN, _SLOWEST = "#7f8c8d", "#c0392b", "#2c7fb8", "#a6bddb"


def save(path: Path, intervals: Sequence[Interval], title: str) -> None:
    """Write the PNG. Raises ImportError where matplotlib is not installed, and OSError."""
    # Not `pyplot`, which opens windows and keeps every figure.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), dpi=110)
    FigureCanvasAgg(figure)
    rate, latency = figure.subplots(2, 1, sharex=True)
    at_s = [interval.at_s for interval in intervals]
    rate.plot(at_s, [interval.sent_per_s for interval in intervals], color=_SENT, label="sent")
    rate.plot(
        at_s, [interval.received_per_s for interval in intervals], color=_RECEIVED, label="received"
    )
    rate.set_ylabel("messages per second")
    rate.set_title(title, loc="left")
    seen = [interval for interval in intervals if interval.median_ms is not None]
    seen_s = [interval.at_s for interval in seen]
    slowest = [interval.p99_ms or 0.0 for interval in seen]
    latency.plot(seen_s, slowest, color=_SLOWEST, label="p99")
    latency.plot(
        seen_s, [interval.median_ms or 0.0 for interval in seen], color=_MEDIAN, label="median"
    )
    latency.set_ylabel("ms from producer to consumer")
    latency.set_xlabel("seconds")
    for axes in (rate, latency):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, loc="upper left")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
