"""The id of a store: made once, and durable before it is used."""

import logging
from pathlib import Path

import pytest

from tianzhou.errors import StoreError
from tianzhou.ha import store_id
from tianzhou.ha.store_id import load_store_id


def test_a_store_keeps_its_id_and_has_its_own(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    made = load_store_id(first)
    assert made == load_store_id(first) != load_store_id(second)
    assert (first / "storeId").read_text() == f"{made}\n"


@pytest.mark.parametrize("content", [b"", b"abc\n", b"\xff" * 32])
def test_a_damaged_id_is_replaced(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "storeId").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        made = load_store_id(tmp_path)
    assert made == load_store_id(tmp_path)
    assert "damaged" in caplog.text


def test_an_id_that_cannot_be_written_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(store_id, "replace_file", full)
    with pytest.raises(StoreError, match="no space left"):
        load_store_id(tmp_path)
