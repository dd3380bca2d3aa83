"""The files of deploy/ and the page about them name commands, options and settings that exist."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from tianzhou.broker.config import BrokerConfig, load_broker_config
from tianzhou.cli.command_tree import COMMAND_GROUPS, SERVER_COMMANDS
from tianzhou.cli.mqadmin import stock_entrypoints
from tianzhou.cli.serve import broker, up
from tianzhou.cli.serve.layouts import LAYOUTS
from tianzhou.config.properties import parse_properties
from tianzhou.config.settings import Given, settings_of
from tianzhou.namesrv.config import NamesrvConfig

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "deploy.md").read_text()
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
UNITS = sorted(DEPLOY.glob("*.service"))
COMMANDS = re.findall(r"^CMD (\[.*\])$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
KEYS = {each.key for kind in (BrokerConfig, NamesrvConfig) for each in settings_of(kind)}


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign] # the names have capitals
    parser.read_string(path.read_text())
    return parser


def run(words: Sequence[str], folder: Path) -> int:
    """Run a command line as far as it gets without serving; unknown options end it earlier."""
    program, arguments = Path(words[0]).name, list(words[1:])
    assert program in SCRIPTS, words
    if program == "tianzhou":
        assert arguments.pop(0) == "up", words
        # A folder cannot be a log: that is found out after all options were understood.
        return up.main([*arguments, "--log-file", str(folder)])
    at = arguments.index("-c") + 1
    arguments[at] = str(folder / "empty.properties")
    (folder / "empty.properties").touch()
    serve = {"mqbroker": stock_entrypoints.mqbroker, "mqnamesrv": stock_entrypoints.mqnamesrv}[
        program
    ]
    return serve([*arguments, "-p"])


def test_there_are_units_and_a_container_file() -> None:
    assert [path.stem for path in UNITS] == ["tianzhou-broker", "tianzhou-namesrv"]
    assert len(COMMANDS) == 1


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_starts_a_command_that_exists(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parsed = unit(path)
    assert set(parsed.sections()) == {"Unit", "Service", "Install"}
    words = shlex.split(parsed["Service"]["ExecStart"])
    assert run(words, tmp_path) == 0
    assert "listenPort=" in capsys.readouterr().out
    assert f"`{Path(words[0]).name} {' '.join(words[1:])}`" in PAGE
    for key in ("User", "StateDirectory", "LimitNOFILE", "TimeoutStopSec", "Restart"):
        assert parsed["Service"][key], key
        assert key in PAGE, key
    stop_s = int(parsed["Service"]["TimeoutStopSec"])
    assert stop_s > BrokerConfig().shutdown_wait_time_seconds, "a clean stop must fit"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_units_pass_systemd_analyze(path: Path, tmp_path: Path) -> None:
    # The program is not installed where the unit says, and this user is none of the machine's.
    text = re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", path.read_text(), flags=re.M)
    (tmp_path / path.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / path.name)],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    about = [line for line in done.stderr.splitlines() if path.name in line]
    assert (done.returncode, about) == (0, [])


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_the_files_of_a_layout_are_those_of_its_brokers(layout: str) -> None:
    found: list[tuple[str, int, str]] = []
    for path in sorted((DEPLOY / "layouts" / layout).glob("*.properties")):
        loaded = load_broker_config(path, environ={})
        assert (loaded.warnings, loaded.notes) == ((), ()), path
        config = loaded.config
        found.append((config.broker_name, config.broker_id, config.broker_role.value))
        assert config.slave_read_enable, path
        assert path.stem.endswith("-s") == config.is_slave, path
    assert found == sorted(found, key=lambda each: (each[0], -each[1])), (
        "a file is named after its broker"
    )
    assert set(found) == {(each.name, each.broker_id, each.role.value) for each in LAYOUTS[layout]}
    assert len(found) == len(LAYOUTS[layout])


@pytest.mark.parametrize("layout", ["2m-2s-async", "2m-2s-sync"])
@pytest.mark.parametrize(
    ("master", "slave"), [("broker-a", "broker-b-s"), ("broker-b", "broker-a-s")]
)
def test_master_and_slave_on_one_host_share_no_port_and_no_folder(
    layout: str, master: str, slave: str
) -> None:
    folder = DEPLOY / "layouts" / layout
    pair = [
        load_broker_config(folder / f"{name}.properties", environ={}).config
        for name in (master, slave)
    ]
    ports = [
        port for each in pair for port in (each.listen_port - 2, each.listen_port, each.ha_port)
    ]
    assert len(set(ports)) == len(ports)
    assert pair[0].root_directory != pair[1].root_directory
    assert pair[0].broker_name != pair[1].broker_name, "the slave is that of the other master"


def test_every_layout_has_a_folder_and_a_row() -> None:
    folders = {path.name for path in (DEPLOY / "layouts").iterdir() if path.is_dir()}
    assert folders == set(LAYOUTS)
    text = (DEPLOY / "layouts" / "README.md").read_text()
    for name in folders:
        assert f"| `{name}` |" in text


def test_the_container_starts_a_command_that_exists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (text,) = COMMANDS
    assert run([str(word) for word in tomllib.loads(f"words = {text}")["words"]], tmp_path) == 2
    assert f"logFile {tmp_path} cannot be written" in capsys.readouterr().err


def test_container_file_copies_existing_files() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    for script in re.findall(r"python (tools/\S+)", text):
        assert (ROOT / script).is_file(), script
    assert (ROOT / "kernel").is_dir()


def test_settings_on_the_page_exist() -> None:
    blocks = re.findall(r"```properties\n(.*?)```", PAGE, re.DOTALL)
    found = [pair for block in blocks for pair in parse_properties(block, "deploy.md")]
    assert len(found) > 5
    assert not {pair.key for pair in found} - KEYS
    loaded = broker.load_settings(None, [Given(p.key, p.value, "page") for p in found], {})
    assert not loaded.warnings
    for text in re.findall(r"--set (\w+)=", PAGE):
        assert text in KEYS, text
    for text in re.findall(r"`(\w+)=[^`]*`", PAGE):
        assert text in KEYS or text in (
            "LimitNOFILE", "ProtectSystem", "Restart", "RestartPreventExitStatus",
        ), text  # fmt: skip


def test_commands_on_the_page_exist() -> None:
    for noun in re.findall(r"`tianzhou ([a-z]+)", PAGE):
        assert noun in {*COMMAND_GROUPS, *SERVER_COMMANDS, "up", "version", "stop"}, noun


def test_only_what_a_build_needs_is_copied() -> None:
    """The rules let pass what they name, and every file that the build reads is among that."""
    rules = (ROOT / ".containerignore").read_text().splitlines()
    assert (ROOT / ".dockerignore").read_text().splitlines()[1:] == rules
    first, *others = [line for line in rules if not line.startswith("#")]
    assert first == "*", "nothing goes in unless it is named"
    passed = {line[1:] for line in others if line.startswith("!")}
    assert all((ROOT / name).exists() for name in passed)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = ["pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]]
    needed += project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    text = (DEPLOY / "Containerfile").read_text()
    needed += re.findall(r" \./(\w+)", text) + re.findall(r" -c (\S+)", text)
    assert {path.split("/")[0] for path in needed} == passed
