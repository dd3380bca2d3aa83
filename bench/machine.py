"""CPU and memory of processes, and the CPU used by the rest of the machine."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

_BUSY_KINDS = ("user", "system", "nice", "irq", "softirq")


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds between two moments: of one process, and of the rest of the machine."""

    wall_s: float
    process_cpu_s: float
    other_cpu_cores: float


class Meter:
    """Measures the CPU of one process, and that of all others except this one."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._own = psutil.Process()
        self._start = self._read()

    def _read(self) -> tuple[float, float, float, float]:
        times = psutil.cpu_times()._asdict()
        busy = sum(times.get(kind, 0.0) for kind in _BUSY_KINDS)
        return time.perf_counter(), _cpu_s(self._process), _cpu_s(self._own), busy

    def stop(self) -> Usage:
        wall, process, own, busy = (
            after - before for before, after in zip(self._start, self._read(), strict=True)
        )
        return Usage(wall, process, max(0.0, busy - process - own) / wall)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def stolen_cpu_s() -> float:
    """CPU seconds stolen by the host of a virtual machine, as far as it reports them."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def rss_mib(pid: int) -> float:
    return psutil.Process(pid).memory_info().rss / 2**20


def median_and_spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, smallest and largest."""
    return statistics.median(values), min(values), max(values)
