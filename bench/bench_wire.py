"""Benchmark of the wire codecs: CPU nanoseconds per frame and record, kernel and pure Python.

The frame is a SEND_MESSAGE_V2 request with a body of 1 KiB as the Java client sends it; the pull
response has 32 records of 1 KiB. Kernel and pure Python alternate, so that other load on the
machine affects both. `--json` prints one line per figure.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from types import ModuleType

from bench.machine import median_and_spread
from tianzhou.protocol import kernel
from tianzhou.protocol.pure import frames as pure
from tianzhou.protocol.pure import record as pure_record
from tianzhou.protocol.pure.frames import ENCODING_BINARY, ENCODING_JSON
from tianzhou.protocol.records import record

BODY = bytes(range(256)) * 4
PROPERTIES = (
    "UNIQ_KEY\x017F0000010A1B18B4AAC2123456780000\x02WAIT\x01true\x02TAGS\x01TagA\x02"
    "KEYS\x01order-20240229-0001\x02"
)
FIELDS = {
    "a": "ProducerGroup", "b": "TopicTest", "c": "TBW102", "d": "4", "e": "2", "f": "0",
    "g": "1700000000000", "h": "0", "i": PROPERTIES, "j": "0", "k": "false", "m": "false",
    "n": "broker-a",
}  # fmt: skip
SEND_MESSAGE_V2 = 310
RECORDS = 32
HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))
RECORD = (
    "TopicTest", BODY, PROPERTIES, 3, 123_456, 98_765_432, 0, 0, 1_700_000_000_000, HOST,
    1_700_000_000_001, HOST, 0, 0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value: nanoseconds per frame or record."""

    what: str
    by: str
    median_ns: float
    low_ns: float
    high_ns: float


@dataclass(frozen=True, slots=True)
class Case:
    """A call to measure, in the kernel and in pure Python, and its number of frames or records."""

    what: str
    name: str
    pure: ModuleType
    arguments: tuple[object, ...]
    per_call: int = 1


def cases() -> list[Case]:
    found: list[Case] = []
    for label, encoding in (("JSON", ENCODING_JSON), ("binary", ENCODING_BINARY)):
        send = (SEND_MESSAGE_V2, 0, 399, 12_345, 0, None, FIELDS, encoding, BODY)
        frame = pure.encode_frame(*send)
        received = memoryview(bytearray(frame))
        found += [
            Case(f"decode frame, {label}", "decode_header", pure, (received,)),
            Case(f"encode frame, {label}", "encode_frame", pure, send),
        ]
    frames = pure.encode_frame(*send) * RECORDS
    reply = memoryview(bytearray(pure_record.encode_record(*RECORD) * RECORDS))
    found += [
        Case("split frames", "split_frames", pure, (bytearray(frames), 2**24), RECORDS),
        Case("encode record", "encode_record", pure_record, RECORD),
        Case("decode records", "decode_records", pure_record, (reply, False, True), RECORDS),
        Case("decode records, CRC", "decode_records", pure_record, (reply, True, True), RECORDS),
    ]
    return found


def measure(case: Case, repeats: int, budget_ms: int) -> list[Figure]:
    """Medians over repeats of about `budget_ms` each."""
    calls: dict[str, Callable[..., object]] = {"pure": getattr(case.pure, case.name)}
    if kernel.WHY_PURE is None:
        calls = {"kernel": getattr(import_module("tianzhou_kernel"), case.name), **calls}
    samples: dict[str, list[float]] = {by: [] for by in calls}
    rounds = {by: _rounds_for(call, case.arguments, budget_ms) for by, call in calls.items()}
    for _ in range(repeats):
        for by, call in calls.items():
            spent = _spend(call, case.arguments, rounds[by])
            samples[by].append(spent / rounds[by] / case.per_call)
    return [Figure(case.what, by, *median_and_spread(values)) for by, values in samples.items()]


def client_reply(repeats: int, budget_ms: int) -> Figure:
    """What a consumer pays per message of a reply: decoding, and the object it gets."""
    reply = pure_record.encode_record(*RECORD) * RECORDS
    rounds = _rounds_for(record.decode_records, (reply,), budget_ms)
    samples = [
        _spend(record.decode_records, (reply,), rounds) / rounds / RECORDS for _ in range(repeats)
    ]
    by = "pure" if kernel.WHY_PURE else "kernel"
    return Figure("decode records to messages", by, *median_and_spread(samples))


def _rounds_for(call: Callable[..., object], arguments: tuple[object, ...], budget_ms: int) -> int:
    rounds = 1
    while (spent := _spend(call, arguments, rounds)) < 1_000_000:
        rounds *= 4
    return max(1, int(rounds * budget_ms * 1_000_000 / spent))


def _spend(call: Callable[..., object], arguments: tuple[object, ...], rounds: int) -> int:
    """CPU nanoseconds of this thread: time given to other programs does not count."""
    gc.collect()
    gc.disable()
    start = time.thread_time_ns()
    for _ in range(rounds):
        call(*arguments)
    spent = time.thread_time_ns() - start
    gc.enable()
    return spent


def figures(*, quick: bool = False) -> list[Figure]:
    """Every figure of the wire's codec."""
    repeats, budget_ms = (5, 20) if quick else (15, 100)
    found: list[Figure] = []
    for case in cases():
        found += measure(case, repeats, budget_ms)
    found.append(client_reply(repeats, budget_ms))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON line per figure")
    parser.add_argument("--quick", action="store_true", help="short repeats, for a quick check")
    options = parser.parse_args()
    if kernel.WHY_PURE is not None:
        print(f"pure Python only: {kernel.WHY_PURE}", file=sys.stderr)
    found = figures(quick=options.quick)
    if options.json:
        for figure in found:
            print(json.dumps(asdict(figure)))
        return
    print(f"{'ns of CPU per frame or record':32}{'by':>8}{'median':>10}{'low':>10}{'high':>10}")
    for figure in found:
        print(
            f"{figure.what:32}{figure.by:>8}{figure.median_ns:>10,.0f}{figure.low_ns:>10,.0f}"
            f"{figure.high_ns:>10,.0f}"
        )


if __name__ == "__main__":
    main()
