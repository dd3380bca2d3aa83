"""The KV configuration: saved before it is in force, in RocketMQ's layout."""

import asyncio
import json
from pathlib import Path

import pytest

from tianzhou.errors import ConfigError, StoreError
from tianzhou.namesrv.kv_config import KVConfig


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_values_can_be_read_at_once_and_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kvConfig.json"
    kv = KVConfig(path)
    await kv.put("ORDER_TOPIC_CONFIG", "orders", "broker-a:4;broker-b:4")
    await kv.put("other", "ключ", '天舟 "quoted"\n')
    for again in (kv, KVConfig(path)):
        assert again.get("ORDER_TOPIC_CONFIG", "orders") == "broker-a:4;broker-b:4"
        assert again.namespace("other") == {"ключ": '天舟 "quoted"\n'}


async def test_the_file_has_rocketmqs_layout(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    kv = KVConfig(path)
    await kv.put("b", "k", "v")
    await kv.put("a", "k", "v")
    assert json.loads(path.read_bytes()) == {"configTable": {"a": {"k": "v"}, "b": {"k": "v"}}}
    assert path.read_bytes().startswith(b'{"configTable":{')
    assert names_in(tmp_path) == ["kvConfig.json"]


async def test_deleting_the_last_key_leaves_an_empty_namespace(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    kv = KVConfig(path)
    await kv.put("ns", "k", "v")
    await kv.delete("ns", "k")
    await kv.delete("ns", "unknown")
    await kv.delete("nowhere", "k")
    for again in (kv, KVConfig(path)):
        assert again.get("ns", "k") is None
        assert again.namespace("ns") == {}
        assert again.namespace("nowhere") is None


async def test_concurrent_changes_are_all_saved(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    kv = KVConfig(path)
    await asyncio.gather(*(kv.put("ns", f"k{number}", str(number)) for number in range(20)))
    assert KVConfig(path).namespace("ns") == {f"k{number}": str(number) for number in range(20)}


@pytest.mark.parametrize("content", [b"", b" \n"])
def test_an_empty_file_is_an_empty_table(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_bytes(content)
    assert KVConfig(path).namespace("ns") is None


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b'{"configTable":{"a":1}}', b'{"configTable":[]}', b"{}", b"\xff\xfe"],
)
def test_a_broken_file_is_an_error_with_its_path_and_stays_unchanged(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"kvConfig\.json is broken .* move it away"):
        KVConfig(path)
    assert path.read_bytes() == content


def test_an_unreadable_file_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{tmp_path} cannot be read: Is a directory"):
        KVConfig(tmp_path)


async def test_a_change_that_cannot_be_saved_has_no_effect(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    kv = KVConfig(folder / "kvConfig.json")
    await kv.put("ns", "k", "old")
    (folder / "kvConfig.json").unlink()
    folder.rmdir()
    folder.write_text("not a folder")
    with pytest.raises(StoreError, match=r"kvConfig\.json cannot be saved: "):
        await kv.put("ns", "k", "new")
    with pytest.raises(StoreError):
        await kv.delete("ns", "k")
    assert kv.get("ns", "k") == "old"
