"""The interval of the rounds follows what they cost."""

from tianzhou.console.collect.cadence import INTERVAL_MAX_MS, Cadence, next_round_ms


def test_a_round_of_more_than_half_the_interval_doubles_it() -> None:
    cadence = Cadence()
    assert cadence.after(30_000, 1).interval_ms == 60_000
    slow = cadence.after(30_001, 20_060)
    assert slow.interval_ms == 120_000
    assert slow.reason == (
        "a round with 20,060 requests took 30.0 s, so there is one every 120 s instead of 60 s"
    )


def test_the_interval_is_at_most_five_minutes() -> None:
    cadence = Cadence()
    for _ in range(5):
        cadence = cadence.after(1_000_000, 1)
    assert cadence.interval_ms == INTERVAL_MAX_MS
    assert Cadence(600_000, 600_000).after(500_000, 1).interval_ms == 600_000


def test_fast_rounds_shorten_the_interval_again_and_the_reason_goes() -> None:
    cadence = Cadence().after(40_000, 1).after(70_000, 1)
    assert cadence.interval_ms == 240_000
    same = cadence.after(50_000, 1)
    assert (same.interval_ms, same.reason) == (240_000, cadence.reason)
    cadence = same.after(1_000, 1)
    assert (cadence.interval_ms, cadence.reason != "") == (120_000, True)
    cadence = cadence.after(1_000, 1)
    assert (cadence.interval_ms, cadence.reason) == (60_000, "")


def test_a_short_interval_is_doubled_too() -> None:
    assert Cadence(1_000, 1_000).after(600, 1).interval_ms == 2_000


def test_a_round_begins_at_midnight() -> None:
    assert next_round_ms(1_000, 60_000, 1_000_000) == 60_000
    assert next_round_ms(950_000, 60_000, 1_000_000) == 50_000
    assert next_round_ms(1_000_000, 60_000, 1_000_000) == 60_000
