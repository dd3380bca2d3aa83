"""Flame graphs of a broker under load, into profiles/ (which git ignores).

    python tools/profile.py                    all of them
    python tools/profile.py send --seconds 20

    send.svg     1 KiB sends, served by the kernel: its functions, and what is left to Python
    small.svg    the same with one send in flight, where Python's share per buffer is largest
    pull.svg     pulls of 32 x 1 KiB
    pure.svg     1 KiB sends without the kernel

The load is the benchmarks' generator (`bench/bench_broker.py` says where its source is expected).
py-spy is installed into the virtual environment when it is missing. It shows native frames where it
can; where it cannot (it says so) the kernel is one block, the call of `Feed.feed`.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import bench_broker, broker_servers, progress  # noqa: E402 - the path comes first

OUT = ROOT / "profiles"
RATE_HZ = 250
TOPIC = "BenchSend"


def load_of(conns: int, window: int) -> tuple[str, ...]:
    return (
        "send", "--topic", TOPIC, "--size", "1024", "--conns", str(conns), "--window", str(window)
    )  # fmt: skip


LOADS: dict[str, tuple[str, ...]] = {
    "send": load_of(64, 16),
    "small": load_of(1, 1),
    "pull": ("pull", "--topic", TOPIC, "--conns", "4", "--max", "32"),
    "pure": load_of(64, 16),
}


def find_spy() -> str:
    """py-spy, installed if it has to be."""
    spy = Path(sys.executable).parent / "py-spy"
    if not spy.exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "py-spy"]
        subprocess.run(command, check=True)  # noqa: S603 - our own interpreter
    return str(spy)


def record(spy: str, program: Path, name: str, seconds: int) -> Path:
    """Run one load against a broker of its own and record it."""
    OUT.mkdir(exist_ok=True)
    picture = OUT / f"{name}.svg"
    os.environ["TIANZHOU_PURE"] = "1" if name == "pure" else "0"
    with broker_servers.tianzhou() as server:
        broker_servers.create_topic(server.port, TOPIC, bench_broker.QUEUES)
        short = ("--warmup", "0", "--duration", "2")
        bench_broker.run_load(program, server, load_of(16, 8), *short)
        command = [
            spy, "record", "--pid", str(server.pid), "--rate", str(RATE_HZ), "--duration",
            str(seconds), "--output", str(picture),
        ]  # fmt: skip
        with subprocess.Popen(  # noqa: S603 - the program found above
            [*command, "--native"], stderr=subprocess.PIPE, text=True
        ) as spying:
            times = ("--warmup", "1", "--duration", str(seconds))
            figures = bench_broker.run_load(program, server, LOADS[name], *times)
            _, errors = spying.communicate()
        if spying.returncode:
            raise SystemExit(f"profile: py-spy failed: {errors[-500:]}")
    rate = figures["msgs_per_s"]
    progress.say(f"{name}: {rate:,.0f} messages/s while watched, {picture.relative_to(ROOT)}")
    return picture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("loads", nargs="*", choices=[*LOADS, []], help="which; all unless said")
    parser.add_argument("--seconds", type=int, default=10)
    options = parser.parse_args()
    spy = find_spy()
    with bench_broker.generator() as program:
        for name in options.loads or LOADS:
            record(spy, program, name, options.seconds)


if __name__ == "__main__":
    main()
