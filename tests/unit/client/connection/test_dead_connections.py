"""Connections with timed-out requests: which are closed, and when."""

from dataclasses import dataclass

from tianzhou.client.connection.dead_connections import DeadConnectionDetector


@dataclass
class FakeLine:
    received_bytes: int = 1_000
    kept_bytes: int = 0


def test_no_bytes_received() -> None:
    doubts, line = DeadConnectionDetector(), FakeLine()
    assert doubts.reason_to_give_up("a", line, 1_000, 999, 0) is None
    assert doubts.reason_to_give_up("a", line, 1_000, 1_000, 0) == "no byte came within 1000 ms"


def test_only_incomplete_frames_received() -> None:
    doubts, line = DeadConnectionDetector(), FakeLine()
    for now_s in (0.0, 1.0, 2.9):
        line.received_bytes += 10
        line.kept_bytes += 10
        assert doubts.reason_to_give_up("a", line, 1_000, 1_000, now_s) is None
    line.received_bytes += 10
    line.kept_bytes += 10
    reason = doubts.reason_to_give_up("a", line, 1_000, 1_000, 3.0)
    assert reason == "no whole frame came within 4000 ms"


def test_complete_frame_resets_the_suspicion() -> None:
    doubts, line = DeadConnectionDetector(), FakeLine()
    for now_s in range(20):
        line.received_bytes += 10
        line.kept_bytes = 10 * (now_s % 3)
        assert doubts.reason_to_give_up("a", line, 1_000, 1_000, now_s) is None


def test_time_outs_of_another_connection_do_not_count() -> None:
    doubts = DeadConnectionDetector()
    for now_s in range(20):
        line = FakeLine(received_bytes=10, kept_bytes=10)
        assert doubts.reason_to_give_up("a", line, 0, 1_000, now_s) is None
