"""Files that are renewed are taken once, and a failure waits for the next change."""

import logging
import os
from pathlib import Path

import pytest

from tianzhou.errors import ConfigError
from tianzhou.remoting.tls.renewal import Renewal


def test_a_change_reloads_once_and_a_failure_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path, told = tmp_path / "server.pem", list[str]()

    def reload() -> None:
        if path.read_text() == "broken":
            raise ConfigError("it is broken")
        told.append(path.read_text())

    path.write_text("first")
    renewal = Renewal([path], reload)
    renewal.look()
    assert told == []
    path.write_text("second!")
    renewal.look()
    renewal.look()
    assert told == ["second!"]
    path.write_text("broken")
    renewal.look()
    assert told == ["second!"]
    assert "new certificates are not used: it is broken" in caplog.text
    fresh = tmp_path / "fresh"
    fresh.write_text("broken")
    os.replace(fresh, path)  # noqa: PTH105 - as tools that renew do it
    renewal.look()
    path.write_text("third..")
    renewal.look()
    assert told == ["second!", "third.."]
