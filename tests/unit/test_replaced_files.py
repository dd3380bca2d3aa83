"""Files that are replaced as a whole: who may read the new one, and what is left behind."""

import os
import stat
from pathlib import Path

import pytest

from tianzhou.cli.shared.context_file import Context, Contexts, save_contexts
from tianzhou.config.files import PRIVATE, replace_file


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def usual_umask() -> object:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_new_file_with_secrets_is_its_owners_alone(tmp_path: Path) -> None:
    replace_file(tmp_path / "plain", b"x")
    replace_file(tmp_path / "secret", b"x", new_mode=PRIVATE)
    assert (mode_of(tmp_path / "plain"), mode_of(tmp_path / "secret")) == (0o644, 0o600)
    assert {each.name for each in tmp_path.iterdir()} == {"plain", "secret"}, "no draft is left"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_an_existing_file_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    file.chmod(mode)
    replace_file(file, b"new", new_mode=PRIVATE)
    assert (mode_of(file), file.read_text()) == (mode, "new")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_an_existing_file_keeps_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    os.chown(file, 1234, 4321)
    replace_file(file, b"new")
    assert (file.stat().st_uid, file.stat().st_gid) == (1234, 4321)


def test_a_draft_that_a_crash_left_is_no_obstacle_and_no_way_in(tmp_path: Path) -> None:
    file, victim = tmp_path / "file", tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f".file.{os.getpid()}.tmp").symlink_to(victim)
    replace_file(file, b"new")
    assert (file.read_text(), victim.read_text()) == ("new", "precious")


def test_the_file_of_contexts_becomes_private_if_it_was_not(tmp_path: Path) -> None:
    path = tmp_path / "contexts.json"
    path.write_text("{}")
    save_contexts(path, Contexts(contexts={"a": Context("a:1", "key", "secret")}))
    assert mode_of(path) == PRIVATE
