"""The table of the broker's figures: what is compared with what, and when an aim is met."""

import socket
import threading
from collections.abc import Callable

import pytest
from bench import bench_broker, broker_table, loads
from bench.bench_broker import APACHE, OURS, PURE, Aims, Results, Samples, WorkersSample
from bench.route_load import frame, read_answer


def samples(rate: float, cpu_us: float, p99_us: float) -> Samples:
    return Samples(
        rate=[rate], cpu_us=[cpu_us], p50_us=[p99_us / 10], p99_us=[p99_us], p999_us=[p99_us * 2]
    )


def test_gains_are_above_one_where_ours_is_better() -> None:
    gains = broker_table.gains_of(samples(400, 5, 100), samples(100, 50, 300))
    assert gains == {"rate": 4.0, "cpu": 10.0, "p50": 3.0, "p99": 3.0}


@pytest.mark.parametrize(
    ("aims", "told"),
    [
        (Aims(), ""),
        (Aims(rate=4, cpu=10, p99=3), "yes"),
        (Aims(rate=4.5, cpu=8), "no: rate 4"),
        (Aims(rate=5, cpu=12, p99=2), "no: rate 4, CPU 10"),
    ],
)
def test_the_verdict_names_what_is_missed(aims: Aims, told: str) -> None:
    gains = broker_table.gains_of(samples(400, 5, 100), samples(100, 50, 300))
    assert broker_table.verdict(aims, gains) == told


def test_a_work_has_a_row_once_both_servers_have_done_it() -> None:
    results = Results()
    results.works["send-1k-64-16", OURS] = samples(400, 5, 100)
    assert broker_table.rows_of(results) == []
    results.works["send-1k-64-16", APACHE] = samples(100, 50, 300)
    results.works["send-1k-64-16", PURE] = samples(90, 40, 300)
    full, pure = (broker_table.cells_of(row) for row in broker_table.rows_of(results))
    assert len(full) == len(broker_table.HEADS)
    assert (full[0], full[3], full[6], full[-1]) == ("send 1 KiB (64,16)", "4.0", "10.0", "yes")
    assert (pure[0], pure[-1]) == ("send 1 KiB (64,16), no kernel", "")


def test_the_gain_of_two_workers_is_by_the_cpu_of_a_message() -> None:
    assert WorkersSample(100_000, 5.0, 90_000, 5.0, 0.9).gain == 2.0
    assert WorkersSample(100_000, 5.0, 180_000, 10.0, 0.1).gain == 1.0


def test_a_plan_of_more_rounds_takes_longer() -> None:
    one, two = (bench_broker.plan_of(rounds, 3.0).expected_s() for rounds in (1, 2))
    assert two == pytest.approx(2 * one)


def test_pulls_that_bring_too_few_messages_do_not_count() -> None:
    bench_broker.check_answers(OURS, {"msgs": 3100, "reqs": 100})
    with pytest.raises(RuntimeError, match=r"pulls of 32 brought 8\.0 messages each"):
        bench_broker.check_answers(OURS, {"msgs": 800, "reqs": 100})


def test_tagged_messages_are_sent_in_batches_that_must_be_stored() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        seen: list[bytes] = []
        answering = threading.Thread(target=answer, args=(listening, seen.append, 4))
        answering.start()
        loads.fill_tagged(port, "T", 2, 4 * loads.BATCH_SIZE, 64)
        answering.join(10)
    assert [b'"e":"0"' in request for request in seen] == [True, False, True, False]
    assert sum(request.count(b"TAGS\x01t") for request in seen) == 4 * loads.BATCH_SIZE


def answer(listening: socket.socket, note: Callable[[bytes], None], count: int) -> None:
    """Take so many requests and say that each was a success."""
    sock, _ = listening.accept()
    with sock:
        for _ in range(count):
            note(read_answer(sock))
            sock.sendall(frame(0, {}))
