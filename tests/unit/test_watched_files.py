"""Changed files are reloaded once, and a failure waits for the next change."""

import logging
import os
from pathlib import Path

import pytest

from tianzhou.config.watched_files import WatchedFiles
from tianzhou.errors import ConfigError
from tianzhou.remoting.tls.settings import watched_certificates


def test_a_change_reloads_once_and_a_failure_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path, loaded = tmp_path / "server.pem", list[str]()

    def reload() -> None:
        if path.read_text() == "broken":
            raise ConfigError("it is broken")
        loaded.append(path.read_text())

    path.write_text("first")
    watched = watched_certificates([path], reload)
    watched.poll()
    assert loaded == []
    path.write_text("second!")
    watched.poll()
    watched.poll()
    assert loaded == ["second!"]
    path.write_text("broken")
    watched.poll()
    assert loaded == ["second!"]
    assert "new certificates are not used: it is broken" in caplog.text
    fresh = tmp_path / "fresh"
    fresh.write_text("broken")
    os.replace(fresh, path)  # noqa: PTH105 - as tools that renew do it
    watched.poll()
    path.write_text("third..")
    watched.poll()
    assert loaded == ["second!", "third.."]


def test_files_that_appear_or_disappear_are_changes(tmp_path: Path) -> None:
    reloads: list[list[str]] = []

    def reload() -> str:
        reloads.append(sorted(path.name for path in tmp_path.iterdir()))
        return "reloaded"

    watched = WatchedFiles(lambda: sorted(tmp_path.iterdir()), reload, "not reloaded")
    (tmp_path / "a").write_text("")
    watched.poll()
    (tmp_path / "b").write_text("")
    watched.poll()
    (tmp_path / "b").unlink()
    watched.poll()
    watched.poll()
    assert reloads == [["a"], ["a", "b"], ["a"]]
