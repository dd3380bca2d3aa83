"""The page cache of the benchmark: allocation, release, and adopted files."""

from pathlib import Path

import pytest
from bench import warm_memory
from bench.warm_memory import HIGH_BYTES, LOW_BYTES, PIECE_BYTES, Cache, pieces_to_take


@pytest.mark.parametrize(
    ("free_bytes", "held", "held_max", "wanted"),
    [
        (LOW_BYTES, 9, 100, 0),
        (HIGH_BYTES, 9, 100, 0),
        (LOW_BYTES - 1, 9, 100, -1),
        (LOW_BYTES - 3 * PIECE_BYTES, 9, 100, -3),
        (LOW_BYTES - 3 * PIECE_BYTES, 2, 100, -2),
        (0, 0, 100, 0),
        (HIGH_BYTES + 3 * PIECE_BYTES, 9, 100, 3),
        (HIGH_BYTES + 3 * PIECE_BYTES, 98, 100, 2),
        (HIGH_BYTES + 3 * PIECE_BYTES, 9, 0, 0),
    ],
)
def test_free_memory_is_kept_between_two_limits(
    free_bytes: int, held: int, held_max: int, wanted: int
) -> None:
    assert pieces_to_take(free_bytes, held * PIECE_BYTES, held_max * PIECE_BYTES) == wanted


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(warm_memory, "PIECE_BYTES", 2 << 20)
    return 2 << 20


def test_files_that_servers_leave_are_given_up_first(tmp_path: Path, small_pieces: int) -> None:
    own, store = tmp_path / "own", tmp_path / "store"
    own.mkdir()
    (store / "commitlog").mkdir(parents=True)
    (store / "commitlog" / "0").write_bytes(bytes(2 * small_pieces + 1))
    (store / "checkpoint").write_bytes(bytes(4096))
    cache = Cache(own)
    cache.take()
    cache.adopt(store)
    assert [path.name for path in store.rglob("*") if path.is_file()] == ["checkpoint"]
    seen = [cache.held_bytes]
    for _ in range(4):
        cache.give_up()
        seen.append(cache.held_bytes)
    assert seen == [3 * small_pieces + 1, 2 * small_pieces + 1, small_pieces + 1, small_pieces, 0]
    assert [path.name for path in own.iterdir()] == ["sparse"]
    cache.close()
