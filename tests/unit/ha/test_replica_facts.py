"""What a replica knows durably: never guessed, never lowered, and R10's rule of unclean stores."""

from pathlib import Path

import msgspec
import pytest

from tianzhou.errors import StoreCorrupt, StoreError
from tianzhou.ha import replica_facts
from tianzhou.ha.replica_facts import (
    FactsFile,
    FlushMode,
    ReplicaFacts,
    Start,
    flush_mode,
    of_failed_fsync,
    of_learner,
    of_start,
    read_boot_id,
    unclean_reason,
)
from tianzhou.store.config import FlushDiskType, StoreConfig

KNOWN = ReplicaFacts(
    group="9f3c", id=2, store_id="a" * 32, boot_id="boot-1", flush=FlushMode.ASYNC,
    followed_epoch=7, confirm=5000, cluster_id="cdf8", highest_epoch=8,
)  # fmt: skip


def file_of(root: Path) -> FactsFile:
    return FactsFile(root, "blue", "broker-a")


def start(
    *, was_clean: bool = False, boot_id: str = "boot-1", store_id: str = "a" * 32,
    flush: FlushMode = FlushMode.ASYNC,
) -> Start:  # fmt: skip
    return Start(was_clean=was_clean, boot_id=boot_id, store_id=store_id, flush=flush)


# -- the files -------------------------------------------------------------------------------------


def test_facts_are_read_again(tmp_path: Path) -> None:
    file = file_of(tmp_path)
    assert (file.facts, file.known_id) == (ReplicaFacts(), 0)
    file.save(KNOWN)
    again = file_of(tmp_path)
    assert (again.facts, again.known_id) == (KNOWN, 2)
    assert (tmp_path / "brokerIdentity").read_text() == "blue#broker-a#2"


def test_an_id_of_rocketmq_is_known(tmp_path: Path) -> None:
    (tmp_path / "brokerIdentity").write_text("blue#broker-a#3")
    file = file_of(tmp_path)
    assert (file.facts, file.known_id) == (ReplicaFacts(), 3)


def test_a_missing_identity_is_written_again(tmp_path: Path) -> None:
    file_of(tmp_path).save(KNOWN)
    (tmp_path / "brokerIdentity").unlink()
    assert file_of(tmp_path).known_id == 2
    assert (tmp_path / "brokerIdentity").exists()


def test_every_changed_byte_of_the_facts_is_refused(tmp_path: Path) -> None:
    file_of(tmp_path).save(KNOWN)
    path = tmp_path / "replicaFacts"
    content = path.read_bytes()
    for position in range(len(content) - 1):
        damaged = bytearray(content)
        damaged[position] ^= 0x41
        path.write_bytes(damaged)
        with pytest.raises(StoreCorrupt, match="damaged"):
            file_of(tmp_path)
    for stop in range(len(content) - 1):
        path.write_bytes(content[:stop])
        with pytest.raises(StoreCorrupt, match="damaged"):
            file_of(tmp_path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is no CLUSTER#BROKERNAME#ID"),
        ("blue#broker-a", "is no CLUSTER#BROKERNAME#ID"),
        ("blue#broker-a#0", "is no CLUSTER#BROKERNAME#ID"),
        ("blue#broker-a#2#x", "is no CLUSTER#BROKERNAME#ID"),
        ("blue#broker-a#99999999999", "is no CLUSTER#BROKERNAME#ID"),
        ("blue#broker-b#2", "that of broker 'broker-b' in cluster 'blue'"),
        ("green#broker-a#2", "that of broker 'broker-a' in cluster 'green'"),
        ("blue#broker-a#3", "has the id 3, but .* has 2"),
    ],
)
def test_an_identity_that_contradicts_is_refused(tmp_path: Path, text: str, why: str) -> None:
    file_of(tmp_path).save(KNOWN)
    (tmp_path / "brokerIdentity").write_text(text)
    with pytest.raises(StoreCorrupt, match=why):
        file_of(tmp_path)


@pytest.mark.parametrize("name", ["followed_epoch", "highest_epoch"])
def test_epochs_never_decrease(tmp_path: Path, name: str) -> None:
    file = file_of(tmp_path)
    file.save(KNOWN)
    with pytest.raises(AssertionError, match="never decreases"):
        file.save(msgspec.structs.replace(KNOWN, **{name: 6}))
    assert file_of(tmp_path).facts == KNOWN


def test_facts_that_cannot_be_written_are_not_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_of(tmp_path)
    file.save(KNOWN)

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(replica_facts, "replace_file", full)
    with pytest.raises(StoreError, match="no space left"):
        file.save(msgspec.structs.replace(KNOWN, followed_epoch=9))
    assert file.facts == KNOWN


# -- R10 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flush", "was_clean", "boot_id", "is_unclean"),
    [
        (FlushMode.ASYNC, False, "boot-2", True),  # a power cut
        (FlushMode.ASYNC, False, "", True),  # a machine that cannot say
        (FlushMode.ASYNC, False, "boot-1", False),  # kill -9: the page cache stays
        (FlushMode.ASYNC, True, "boot-2", False),
        (FlushMode.SYNC, False, "boot-2", False),
        (FlushMode.STAGED, False, "boot-1", True),  # kill -9 loses the pool
        (FlushMode.STAGED, True, "boot-2", False),
    ],
)
def test_what_an_unclean_stop_can_lose(
    flush: FlushMode, was_clean: bool, boot_id: str, is_unclean: bool
) -> None:
    facts = msgspec.structs.replace(KNOWN, flush=flush)
    assert bool(unclean_reason(facts, start(was_clean=was_clean, boot_id=boot_id))) is is_unclean


def test_the_flush_mode_of_the_last_run_decides() -> None:
    """Settings may change while the broker is down."""
    now_sync = start(boot_id="boot-2", flush=FlushMode.SYNC)
    assert "ASYNC_FLUSH" in unclean_reason(KNOWN, now_sync)


def test_another_store_is_unclean_even_if_it_was_stopped() -> None:
    reason = unclean_reason(KNOWN, start(was_clean=True, store_id="b" * 32))
    assert "another one" in reason


def test_a_replica_that_was_in_no_group_has_lost_nothing() -> None:
    assert not unclean_reason(ReplicaFacts(flush=FlushMode.ASYNC), start(boot_id="boot-2"))


def test_an_unclean_replica_stays_so_until_it_has_left_the_set() -> None:
    """A stop without etcd in between must not make it clean."""
    power_cut = start(boot_id="boot-2")
    facts = of_start(KNOWN, power_cut)
    assert facts.boot_id == "boot-1"
    stopped = start(was_clean=True, boot_id="boot-2")
    again = of_start(facts, stopped)
    assert again.unclean == facts.unclean != ""
    left = of_learner(again, stopped, log_end=4000)
    assert (left.unclean, left.boot_id, left.confirm) == ("", "boot-2", 4000)
    assert not unclean_reason(left, start(boot_id="boot-2"))


def test_the_confirm_offset_of_a_learner_is_not_raised() -> None:
    assert of_learner(KNOWN, start(), log_end=9000).confirm == 5000


def test_a_failed_fsync_is_remembered() -> None:
    facts = of_failed_fsync(KNOWN, "Input/output error")
    assert "Input/output error" in unclean_reason(facts, start(was_clean=True))


def test_a_clean_start_takes_the_new_boot_and_mode() -> None:
    facts = of_start(KNOWN, start(was_clean=True, boot_id="boot-2", flush=FlushMode.SYNC))
    assert (facts.boot_id, facts.flush, facts.unclean) == ("boot-2", FlushMode.SYNC, "")


def test_the_mode_of_a_store() -> None:
    sync = StoreConfig(flush_disk_type=FlushDiskType.SYNC_FLUSH, transient_store_pool_enable=True)
    assert flush_mode(sync) is FlushMode.SYNC
    assert flush_mode(StoreConfig()) is FlushMode.ASYNC
    assert flush_mode(StoreConfig(transient_store_pool_enable=True)) is FlushMode.STAGED


def test_the_boot_id(tmp_path: Path) -> None:
    assert read_boot_id(tmp_path / "none") == ""
    (tmp_path / "id").write_text("5f2a\n")
    assert read_boot_id(tmp_path / "id") == "5f2a"
