"""Commands in this process: options, output, exit codes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tianzhou.cli.app import app
from tianzhou.cli.mqadmin import stock_entrypoints
from tianzhou.cli.serve import arguments, foreground, namesrv
from tianzhou.cli.shared import terminal
from tianzhou.errors import ConfigError


@pytest.fixture(autouse=True)
def away_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIANZHOU_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("HOME", str(tmp_path))


def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_error("tianzhou x", ConfigError("first\n  second\r\nthird"))
    assert capsys.readouterr() == ("", "tianzhou x: first second third\n")


def test_program_that_fails_to_start_is_stopped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stopped: list[bool] = []

    class Unlucky:
        async def start(self) -> tuple[str, int]:
            raise ConfigError("no luck")

        async def stop(self) -> None:
            stopped.append(True)

    assert foreground.run("unlucky", Unlucky, lambda _, address: address) == terminal.FAILED
    assert stopped == [True]
    assert capsys.readouterr() == ("", "unlucky: no luck\n")


def test_changes_are_saved_to_the_configuration_file(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.properties"
    file.write_text("configStorePath=/elsewhere\nlistenPort=1\n")
    loaded = namesrv.load_settings(file, [], {})
    assert loaded.config.config_store_path == file
    assert loaded.config.listen_port == 1
    environ = {"TIANZHOU_NAMESRV_CONFIG_STORE_PATH": "/x"}
    assert namesrv.load_settings(file, [], environ).config.config_store_path == Path("/x")


def test_changes_without_a_file_are_saved_to_rocketmq_default(tmp_path: Path) -> None:
    loaded = namesrv.load_settings(None, [], {})
    assert loaded.config.config_store_path == tmp_path / "namesrv" / "namesrv.properties"


def test_settings_as_table_properties_and_json() -> None:
    loaded = namesrv.load_settings(None, [], {"TIANZHOU_NAMESRV_LISTEN_PORT": "7"})
    assert "listenPort" in namesrv.as_table(loaded)
    assert "listenPort=7" in arguments.as_properties(loaded).splitlines()
    (row,) = [row for row in json.loads(namesrv.as_json(loaded)) if row["key"] == "listenPort"]
    assert row == {
        "key": "listenPort",
        "value": "7",
        "origin": "environment TIANZHOU_NAMESRV_LISTEN_PORT",
        "change": "local",
        "meaning": "TCP port for brokers, clients and tools; 0 selects a free one",
    }


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-c", "nowhere"], "nowhere: cannot be read"),
        (["--config", "x"], "unrecognized arguments"),
        (["-x"], "unrecognized arguments: -x"),
    ],
)
def test_usage_errors_of_mqnamesrv(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = stock_entrypoints.mqnamesrv(arguments)
    except SystemExit as e:
        code = e.code
    assert code == terminal.USAGE_ERROR
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("mqnamesrv: ")
    assert told in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["proxy"], ["namesrv", "broker"]])
def test_usage_errors_of_mqshutdown(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        stock_entrypoints.mqshutdown(arguments)
    assert ended.value.code == terminal.USAGE_ERROR
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("program", ["namesrv", "broker"])
def test_mqshutdown_without_running_servers(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stock_entrypoints.mqshutdown([program]) == terminal.FAILED
    assert capsys.readouterr() == (f"No mq{program} running.\n", "")


def test_the_application_lists_its_commands() -> None:
    shown = CliRunner().invoke(app, ["--help"])
    assert shown.exit_code == 0
    for command in ("namesrv", "stop", "version"):
        assert command in shown.output


def test_stop_without_running_servers() -> None:
    ended = CliRunner().invoke(app, ["stop", "namesrv"])
    assert (ended.exit_code, ended.output) == (1, "No mqnamesrv running.\n")


def test_the_application_passes_options_on_to_the_nameserver() -> None:
    ended = CliRunner().invoke(app, ["namesrv", "--set", "x"])
    assert ended.exit_code == terminal.USAGE_ERROR
    assert "--set x: write KEY=VALUE" in ended.output
