"""The log of a server: lines for people and for programs, files that take turns, and the flags."""

import json
import logging
from collections.abc import Generator
from pathlib import Path

import pytest

from tianzhou.broker.config import BrokerConfig, load_broker_config
from tianzhou.broker.workers import worker_settings
from tianzhou.cli.serve import logging as logs
from tianzhou.cli.serve.arguments import ServerArguments
from tianzhou.config.log_settings import LogLevel, LogSettings
from tianzhou.config.settings import Given
from tianzhou.errors import ConfigError

log = logging.getLogger("tianzhou.tests.logs")


@pytest.fixture(autouse=True)
def root_as_it_was() -> Generator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    # Those of pytest are taken off first: `set_up` closes what it finds.
    root.handlers = []
    yield
    for each in root.handlers:
        each.close()
    root.handlers, root.level = handlers, level


def objects(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_text_lines_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up(LogSettings(log_level=LogLevel.WARNING))
    log.info("not worth a line")
    log.warning("topic %s: created", "orders")
    error = capsys.readouterr().err
    assert error.endswith(" WARNING tianzhou.tests.logs - topic orders: created\n")
    assert error.count("\n") == 1


@pytest.mark.parametrize("as_json", [False, True])
def test_a_message_cannot_forge_a_line(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up(LogSettings(log_json=as_json))
    log.warning("client %s", "x\n2026-01-31 ERROR all is lost\r\x85\u2028{}")
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    if as_json:
        assert json.loads(error)["message"].endswith("\r\x85\u2028{}")


def test_json_lines_contain_extra_fields(tmp_path: Path) -> None:
    path = tmp_path / "new" / "broker.log"
    logs.set_up(LogSettings(log_file=path, log_json=True))
    extra = {"code": 310, "peer": "10.0.0.1:1", "level": "mine", "path": Path("x")}
    log.warning("slow %s", "request", extra=extra)
    try:
        int("broken\nin two")
    except ValueError:
        log.exception("it failed")
    first, second = objects(path)
    assert first | {"time": ""} == {
        "time": "", "level": "WARNING", "logger": "tianzhou.tests.logs", "message": "slow request",
        "code": 310, "peer": "10.0.0.1:1", "_level": "mine", "path": "x",
    }  # fmt: skip
    assert str(first["time"]).endswith("+00:00")
    assert "ValueError: invalid literal" in str(second["error"])


def test_with_a_file_only_errors_are_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.set_up(LogSettings(log_file=tmp_path / "a.log"))
    log.info("one")
    log.error("two")
    assert "one" not in (error := capsys.readouterr().err)
    assert error.endswith("two\n")
    assert [line.rpartition(" ")[2] for line in (tmp_path / "a.log").read_text().splitlines()] == [
        "one", "two",
    ]  # fmt: skip


def test_log_files_rotate(tmp_path: Path) -> None:
    logs.set_up(
        LogSettings(log_file=tmp_path / "a.log", log_json=True, log_file_size=4096,
                    log_file_count=3)
    )  # fmt: skip
    for number in range(200):
        log.info("%04d %s", number, "x" * 100)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["a.log", "a.log.1", "a.log.2"]
    assert all(path.stat().st_size <= 4096 for path in tmp_path.iterdir())
    kept = [each for name in reversed(files) for each in objects(tmp_path / name)]
    numbers = [int(str(each["message"])[:4]) for each in kept]
    assert numbers == list(range(200))[-len(numbers) :], "none is lost but the oldest"


def test_unlimited_log_files_are_refused() -> None:
    for key, value in (("logFileCount", "1"), ("logFileSize", "0")):
        with pytest.raises(ConfigError, match=key):
            load_broker_config(environ={}, flags=[Given(key, value, "test")])


def test_unwritable_log_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"logFile .* cannot be written"):
        logs.set_up(LogSettings(log_file=tmp_path / "file" / "a.log"))
    with pytest.raises(ConfigError, match=r"logFile .* cannot be written"):
        logs.set_up(LogSettings(log_file=tmp_path))


def test_flags_become_settings() -> None:
    parser = ServerArguments("server", "a server")
    parser.add_set()
    parser.add_log_flags()
    assert parser.settings(parser.parse_args([])) == []
    words = "--log-level debug --log-file a.log --log-json --log-file-size 1M --log-file-count 2"
    given = {each.key: each.text for each in parser.settings(parser.parse_args(words.split()))}
    assert given == {
        "logLevel": "debug", "logFile": "a.log", "logJson": "true", "logFileSize": "1M",
        "logFileCount": "2",
    }  # fmt: skip


def test_workers_have_separate_log_files(tmp_path: Path) -> None:
    config = BrokerConfig(log_file=tmp_path / "broker.log")
    given = {each.key: each.text for each in worker_settings(config, 3)}
    assert given["logFile"] == str(tmp_path / "broker-3.log")
    assert "logFile" not in {each.key for each in worker_settings(BrokerConfig(), 3)}
