"""The KV configuration: on disk before it is in force, in RocketMQ's layout."""

import asyncio
import json
from pathlib import Path

import pytest

from tianzhou.errors import ConfigError, StoreError
from tianzhou.namesrv.kv_config import KVConfig


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_what_is_put_can_be_got_now_and_after_a_restart(tmp_path: Path) -> None:
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


async def test_a_deleted_key_is_gone_and_its_namespace_stays(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    kv = KVConfig(path)
    await kv.put("ns", "k", "v")
    await kv.delete("ns", "k")
    await kv.delete("ns", "never was")
    await kv.delete("nowhere", "k")
    for again in (kv, KVConfig(path)):
        assert again.get("ns", "k") is None
        assert again.namespace("ns") == {}
        assert again.namespace("nowhere") is None


async def test_concurrent_changes_all_count(tmp_path: Path) -> None:
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
def test_a_broken_file_is_named_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"kvConfig\.json is broken .* move it away"):
        KVConfig(path)
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{tmp_path} cannot be read: Is a directory"):
        KVConfig(tmp_path)


async def test_what_cannot_be_saved_does_not_count(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    kv = KVConfig(folder / "kvConfig.json")
    await kv.put("ns", "k", "old")
    (folder / "kvConfig.json").unlink()
    folder.rmdir()
    folder.write_text("no folder any more")
    with pytest.raises(StoreError, match=r"kvConfig\.json cannot be saved: "):
        await kv.put("ns", "k", "new")
    with pytest.raises(StoreError):
        await kv.delete("ns", "k")
    assert kv.get("ns", "k") == "old"
