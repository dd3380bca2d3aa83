"""Tables on disk: atomic saves, backups, loading."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from tianzhou.broker.tables.offsets import OffsetTable
from tianzhou.broker.tables.saver import TableSaver, encode_table, load_table, save_table
from tianzhou.errors import BodyError, StoreCorrupt
from tianzhou.remoting.scheduler import one_step


def read(path: Path) -> dict[str, object] | None:
    return load_table(path, lambda found: found)


def test_a_saved_table_is_loaded_and_the_previous_one_is_its_backup(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    assert read(path) is None
    save_table(path, encode_table({"a": 1}))
    save_table(path, encode_table({"a": 2}))
    assert read(path) == {"a": 2}
    assert read(path.with_name("topics.json.bak")) == {"a": 1}
    assert sorted(each.name for each in path.parent.iterdir()) == ["topics.json", "topics.json.bak"]


def test_a_damaged_table_is_renamed_and_its_backup_is_used(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    save_table(path, b'{"a":1}')
    save_table(path, b'{"a":2}')
    for damage in (b"", b"\0\0\0", b'{"a":', b"[1]"):
        path.write_bytes(damage)
        assert read(path) == {"a": 1}
        assert path.with_name("topics.json.bad").read_bytes() == damage
        assert not path.exists()


def test_the_backup_alone_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.with_name("topics.json.bak").write_bytes(b'{"a":1}')
    assert read(path) == {"a": 1}


def test_two_damaged_files_stop_the_start(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_bytes(b"{")
    path.with_name("topics.json.bak").write_bytes(b"}")
    with pytest.raises(
        StoreCorrupt, match=r"topics\.json: .*topics\.json\.bak: .*Repair or remove"
    ):
        read(path)


def test_a_table_that_cannot_be_decoded_counts_as_damaged(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_bytes(b'{"offsetTable":{"t@g":{"zero":1}}}')
    path.with_name("consumerOffset.json.bak").write_bytes(b'{"offsetTable":{"t@g":{0:7}}}')
    table = OffsetTable()

    def load(found: dict[str, object]) -> OffsetTable:
        table.load(found)
        return table

    assert load_table(path, load) is table
    assert table.find("g", "t", 0) == 7


def test_loading_other_content_raises() -> None:
    with pytest.raises(BodyError, match="offsets cannot be read"):
        OffsetTable().load({"offsetTable": 5})


async def test_the_saver_writes_what_is_marked_and_nothing_else(tmp_path: Path) -> None:
    contents = {tmp_path / "a.json": b"{}", tmp_path / "b.json": b"{}"}
    first, second = contents
    saver = TableSaver(
        {path: partial(one_step, partial(contents.__getitem__, path)) for path in contents}
    )
    saver.mark(first)
    assert await saver.save()
    assert first.exists()
    assert not second.exists()
    contents[second] = b'{"b":1}'
    await saver.close()
    assert second.read_bytes() == b'{"b":1}'


async def test_a_table_that_cannot_be_saved_is_retried(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    folder.write_bytes(b"in the way")
    path = folder / "a.json"
    saver = TableSaver({path: lambda: one_step(lambda: b"{}")})
    assert not await saver.save(path)
    folder.unlink()
    assert await saver.save()
    assert path.read_bytes() == b"{}"
    await saver.close()


async def test_pending_changes_share_one_save(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    encoded: list[int] = []

    def encode() -> bytes:
        encoded.append(1)
        return b"{}"

    saver = TableSaver({path: lambda: one_step(encode)})

    async def change() -> bool:
        saver.mark(path)
        return await saver.save()

    assert all(await asyncio.gather(*(change() for _ in range(50))))
    assert len(encoded) <= 2, "one save for the first, one for all that came meanwhile"
    await saver.close()
