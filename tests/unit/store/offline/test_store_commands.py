"""`tianzhou store`: reads without writing, and needs confirmation for changes."""

import json
from pathlib import Path

import pytest
from tests.support.store import delete_topic, draft, open_store, read_queue, small_config
from typer.testing import CliRunner

from tianzhou.cli.commands.store import app
from tianzhou.store.config import StoreConfig
from tianzhou.store.message_store import MessageStore


@pytest.fixture
def run() -> CliRunner:
    return CliRunner()


def config(root: Path) -> StoreConfig:
    """Slots and items in RocketMQ's ratio, so that the sizes of the index can be detected."""
    return StoreConfig(
        store_path_root_dir=root, mapped_file_size_commit_log=8192,
        mapped_file_size_consume_queue=140, max_hash_slot_num=5, max_index_num=20,
    )  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with open_store(config(tmp_path)) as store:
        for number in range(40):
            store.append(draft("ab"[number % 2], number % 3, b"%d" % number * 90, key=f"k{number}"))
    return tmp_path


def content(root: Path) -> dict[Path, tuple[bytes, int]]:
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file() and path.name != "lock"
    }


def test_reading_commands_change_nothing(run: CliRunner, root: Path) -> None:
    before = content(root)
    for command in ("stats", "verify", "dump"):
        for more in ([], ["--json"]):
            done = run.invoke(app, [command, str(root), *more])
            assert done.exit_code == 0, done.output
    assert content(root) == before


def test_stats_count_messages_and_index_items(run: CliRunner, root: Path) -> None:
    facts = json.loads(run.invoke(app, ["stats", str(root), "--json"]).output)
    assert facts["clean"] is True
    assert sum(queue["next_offset"] for queue in facts["queues"]) == 40
    assert facts["index_items"] == 40
    assert "topic" in run.invoke(app, ["stats", str(root)]).output


def test_dump_filters_and_shows_bodies(run: CliRunner, root: Path) -> None:
    arguments = ["dump", str(root), "--topic", "a", "--queue", "1", "--bodies", "--json"]
    lines = run.invoke(app, arguments).output.splitlines()
    shown = [json.loads(line) for line in lines]
    assert [one["queue_offset"] for one in shown] == list(range(len(shown)))
    assert {(one["topic"], one["queue_id"]) for one in shown} == {("a", 1)}
    assert len(run.invoke(app, ["dump", str(root), "--limit", "3"]).output.splitlines()) == 3
    every = run.invoke(app, ["dump", str(root), "--json"]).output.splitlines()
    third = str(json.loads(every[3])["log_offset"])
    assert (
        run.invoke(app, ["dump", str(root), "--from", third, "--json"]).output.splitlines()
        == (every[3:])
    )


def test_verify_reports_damage_and_rebuild_repairs_queues(run: CliRunner, root: Path) -> None:
    queue_file = root / "consumequeue" / "a" / "0" / f"{0:020d}"
    damaged = bytearray(queue_file.read_bytes())
    damaged[20:28] = (12345).to_bytes(8, "big")
    queue_file.write_bytes(damaged)
    done = run.invoke(app, ["verify", str(root), "--json"])
    assert done.exit_code == 1
    findings = json.loads(done.output)["findings"]
    assert any("queue a/0: entry 1 leads to no message" in finding for finding in findings)
    before = content(root)
    asked = run.invoke(app, ["rebuild", str(root)], input="n\n")
    assert (asked.exit_code, "pass --yes" in asked.output) == (2, True), (
        "there is no terminal for confirmation"
    )
    dry = run.invoke(app, ["rebuild", str(root), "--dry-run", "-y"])
    assert dry.exit_code == 0
    assert "would remove and rebuild 6 queues and 3 index files" in dry.output
    assert content(root) == before
    done = run.invoke(app, ["rebuild", str(root), "--yes", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["messages"] == 40
    assert run.invoke(app, ["verify", str(root)]).exit_code == 0


def test_a_lost_queue_is_damage_and_a_deleted_topic_is_not(run: CliRunner, root: Path) -> None:
    with open_store(config(root)) as store:
        delete_topic(store, "b")
    assert run.invoke(app, ["verify", str(root)]).exit_code == 0
    with open_store(config(root)) as store:
        store.append(draft("b", 0, b"again"))
    assert run.invoke(app, ["verify", str(root)]).exit_code == 0
    for file in (root / "consumequeue" / "a" / "1").iterdir():
        file.unlink()
    findings = json.loads(run.invoke(app, ["verify", str(root), "--json"]).output)["findings"]
    assert any(finding.startswith("queue a/1: no file") for finding in findings)


def test_verify_finds_a_damaged_body(run: CliRunner, root: Path) -> None:
    log_file = root / "commitlog" / f"{0:020d}"
    damaged = bytearray(log_file.read_bytes())
    damaged[damaged.index(b"3333")] ^= 1
    log_file.write_bytes(damaged)
    findings = json.loads(run.invoke(app, ["verify", str(root), "--json"]).output)["findings"]
    assert any("does not match its CRC" in finding for finding in findings)


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        (60 + 2 * 20 + 3, "no message has such a key"),  # hash
        (60 + 2 * 20 + 11, "no message has such a key"),  # log offset
        (60 + 2 * 20 + 15, "not have the time of its message"),
        (60 + 2 * 20 + 19, "not on the chain of its slot"),
        (36, "has an impossible header"),
    ],
)
def test_verify_compares_index_items_with_their_messages(
    run: CliRunner, root: Path, at: int, reason: str
) -> None:
    file = min((root / "index").iterdir())
    damaged = bytearray(file.read_bytes())
    damaged[at] ^= 0x11
    file.write_bytes(damaged)
    done = run.invoke(app, ["verify", str(root), "--json"])
    assert done.exit_code == 1
    assert any(reason in finding for finding in json.loads(done.output)["findings"]), done.output


def test_verify_reports_missing_items_and_wrong_slots(run: CliRunner, root: Path) -> None:
    first, *_ = sorted((root / "index").iterdir())
    damaged = bytearray(first.read_bytes())
    damaged[40:60] = bytes(20)
    first.write_bytes(damaged)
    findings = json.loads(run.invoke(app, ["verify", str(root), "--json"]).output)["findings"]
    assert any("does not point to its newest item" in finding for finding in findings)
    first.unlink()
    run.invoke(app, ["rebuild", str(root), "--yes"])
    assert run.invoke(app, ["verify", str(root)]).exit_code == 0
    middle = sorted((root / "index").iterdir())[1]
    middle.unlink()
    findings = json.loads(run.invoke(app, ["verify", str(root), "--json"]).output)["findings"]
    assert any("messages are not indexed" in finding for finding in findings)


def test_truncate_ends_the_log_at_the_given_offset(run: CliRunner, root: Path) -> None:
    shown = run.invoke(app, ["dump", str(root), "--json"]).output.splitlines()
    offsets = [json.loads(line)["log_offset"] for line in shown]
    before = content(root)
    wrong = run.invoke(app, ["truncate", str(root), "--at", str(offsets[25] + 3), "--yes"])
    assert wrong.exit_code == 1
    dry = run.invoke(app, ["truncate", str(root), "--at", str(offsets[25]), "--dry-run"])
    assert dry.exit_code == 0
    assert "would delete 15 messages" in dry.output
    wrong = run.invoke(app, ["truncate", str(root), "--at", str(offsets[25] + 3), "--dry-run"])
    assert wrong.exit_code == 1
    assert run.invoke(app, ["truncate", str(root), "--at", str(offsets[25])]).exit_code == 2
    assert content(root) == before
    done = run.invoke(app, ["truncate", str(root), "--at", str(offsets[25]), "-y", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["messages"] == 25
    assert run.invoke(app, ["verify", str(root)]).exit_code == 0
    with MessageStore.open(config(root), background=False) as store:
        assert store.end_log_offset == offsets[25]
        assert sum(len(read_queue(store, t, q)) for t in "ab" for q in range(3)) == 25


def test_a_directory_in_use_is_read_but_not_changed(run: CliRunner, root: Path) -> None:
    with open_store(config(root)):
        assert run.invoke(app, ["stats", str(root)]).exit_code == 0
        done = run.invoke(app, ["rebuild", str(root), "--yes"])
        assert done.exit_code == 1
        assert "in use by another program" in done.output


def test_a_hole_before_messages_is_damage_and_a_preallocated_file_is_not(
    run: CliRunner, root: Path
) -> None:
    log_files = sorted((root / "commitlog").iterdir())
    size_bytes = log_files[-1].stat().st_size
    ahead = root / "commitlog" / f"{int(log_files[-1].name) + size_bytes:020}"
    ahead.write_bytes(bytes(size_bytes))  # What a killed writer leaves after its last message.
    done = run.invoke(app, ["verify", str(root)])
    assert done.exit_code == 0, done.output
    log_files[0].write_bytes(bytes(size_bytes))
    findings = json.loads(run.invoke(app, ["verify", str(root), "--json"]).output)["findings"]
    assert findings[0].startswith("log 0: ")


def test_a_directory_that_is_no_store_is_rejected(run: CliRunner, tmp_path: Path) -> None:
    for command in ("stats", "verify", "dump", "rebuild"):
        done = run.invoke(app, [command, str(tmp_path / "nowhere")])
        assert done.exit_code == 1
        assert "is not a store" in done.output
    assert list(tmp_path.iterdir()) == []


def test_file_sizes_are_detected_from_the_files(run: CliRunner, tmp_path: Path) -> None:
    with open_store(small_config(tmp_path, log_file_bytes=4096, index=False)) as store:
        for _ in range(20):
            store.append(draft("t", 0, bytes(500)))
    assert run.invoke(app, ["verify", str(tmp_path)]).exit_code == 0
