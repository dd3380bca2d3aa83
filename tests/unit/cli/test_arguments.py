"""Command lines: help, usage errors, lazy imports."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tianzhou.cli.app import main
from tianzhou.cli.command_tree import COMMAND_GROUPS, SINGLE_COMMANDS
from tianzhou.cli.commands.bench import LatencyHistogram
from tianzhou.cli.commands.message_options import read_bodies
from tianzhou.cli.shared.arguments import SERVER_COMMANDS, is_admin_command
from tianzhou.cli.shared.common_options import kind_of_topic, matching_names, pairs_of, parse_perm
from tianzhou.cli.shared.output import (
    format_duration,
    format_size,
    format_time,
    format_time_ms,
    plural,
)
from tianzhou.errors import ConfigError

Screen = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIANZHOU_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)


def test_help_lists_every_command_group(capsys: Screen) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(
        noun in shown for noun in (*COMMAND_GROUPS, *SERVER_COMMANDS, "up", "stop", "version")
    )


@pytest.mark.parametrize("noun", [*COMMAND_GROUPS, "broker", "namesrv"])
def test_every_command_group_has_help(noun: str, capsys: Screen) -> None:
    words = (
        [noun, "--help"] if noun in COMMAND_GROUPS else [noun, SERVER_COMMANDS[noun][0], "--help"]
    )
    if noun == "mqadmin":
        words = [noun, "help"]
    assert main(words) == 0
    assert len(capsys.readouterr().out) > 200


def test_help_of_a_command_has_examples(capsys: Screen) -> None:
    assert main(["offset", "reset", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Examples" in shown
    assert "tianzhou offset reset billing orders --to latest --yes" in shown


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["topic", "lst"], "tianzhou topic: No such command 'lst'"),
        (["nothing"], "tianzhou: No such command 'nothing'"),
        (["topic", "show"], "tianzhou topic show: Missing argument"),
        (["topic", "create", "t", "--queues", "x"], "a valid integer"),
        (["topic", "list", "--nope"], "No such option"),
        (["topic", "list", "-n", "nowhere"], "has no port"),
        (["topic", "lst"], "No such command 'lst', did you mean list?"),
        (["grup", "list"], "No such command 'grup', did you mean group?"),
        (["topic", "xyzzy"], "No such command 'xyzzy'; see `tianzhou topic --help`"),
        (["stop", "nothing"], "'nothing' is not one of"),
        (["topic", "list", "-C", "x"], "there is no context 'x'"),
        (["topic", "list", "-n", "a:1", "--access-key", "k"], "both"),
        (["offset", "reset", "g", "t", "-n", "a:1"], "pass one of: --to earliest"),
        (["message", "query", "t", "-n", "a:1"], "pass one of: --key"),
        (["message", "tail", "t", "--grep", "[", "-n", "a:1"], "--grep"),
        (["message", "tail", "t", "--sql", "a >", "-n", "a:1"], "a >"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(
    words: list[str], told: str, capsys: Screen
) -> None:
    assert main(words) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert told in error
    assert error.count("\n") == 1, error


def test_a_command_group_alone_shows_its_commands(capsys: Screen) -> None:
    assert main(["topic"]) == 2
    assert "create" in "".join(capsys.readouterr())


def test_no_nameserver_says_what_to_do(capsys: Screen) -> None:
    assert main(["topic", "list", "--namesrv", "127.0.0.1:1"]) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert "no nameserver responds" in error
    assert "tianzhou up" in error
    assert error.count("\n") == 1


def test_completion_scripts(capsys: Screen) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert main(["completion", shell]) == 0
        assert "_TIANZHOU_COMPLETE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tianzhou top", {"topic"}),
        ("tianzhou offset ", {"show", "reset", "skip", "clone"}),
        ("tianzhou broker l", {"list", "lag"}),
        ("tianzhou offset reset --to", {"--to", "--to-offset"}),
        ("tianzhou topic list --context pr", {"prod"}),
    ],
)
def test_shell_completion(line: str, expected: set[str], tmp_path: Path) -> None:
    contexts = '{"contexts": {"prod": {"namesrv": "a:1"}, "dev": {"namesrv": "b:1"}}}'
    (tmp_path / "contexts.json").write_text(contexts)
    environ = os.environ | {
        "TIANZHOU_CONFIG_DIR": str(tmp_path), "_TIANZHOU_COMPLETE": "complete_bash",
        "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "tianzhou"],
        capture_output=True, text=True, timeout=240, check=False, env=environ,
    )  # fmt: skip
    assert set(done.stdout.split()) == expected, done


def loaded_by(*words: str) -> set[str]:
    code = (
        "import sys\n"
        f"sys.argv = ['tianzhou', *{words!r}]\n"
        "from tianzhou.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "sys.stderr.write(' '.join(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True
    )
    return set(done.stderr.split())


def test_help_imports_no_command_group() -> None:
    loaded = loaded_by("--help")
    assert not {f"tianzhou.cli.{spec.module}" for spec in COMMAND_GROUPS.values()} & loaded
    assert "tianzhou.admin" not in loaded


@pytest.mark.parametrize("program", ["broker", "namesrv"])
def test_servers_import_no_command_modules(program: str) -> None:
    loaded = loaded_by(program, "--help")
    assert not {"typer", "rich", "tianzhou.admin", "tianzhou.client"} & loaded


def test_admin_commands_of_servers_start_no_server() -> None:
    assert is_admin_command("broker", ["list"])
    assert not is_admin_command("broker", ["--port", "1"])
    assert not is_admin_command("namesrv", [])
    assert set(SINGLE_COMMANDS) < set(COMMAND_GROUPS)


# -- small parts -----------------------------------------------------------------------------------


def times_of(took_ms: Iterable[float]) -> LatencyHistogram:
    times = LatencyHistogram()
    for each in took_ms:
        times.add(each)
    return times


def test_percentiles() -> None:
    found = times_of(map(float, range(1, 1001))).percentiles()
    expected = {"p50": 500, "p90": 900, "p99": 990, "p99.9": 999, "max": 1000}
    assert found == pytest.approx(expected, rel=0.01)
    assert found["max"] == 1000
    assert times_of([]).percentiles() == {}
    one = times_of([7.0]).percentiles()
    assert one == pytest.approx(dict.fromkeys(("p50", "p90", "p99", "p99.9", "max"), 7.0), rel=0.01)


def test_percentiles_are_of_the_whole_run() -> None:
    """What comes late counts as much as what came first."""
    quick_then_slow = times_of([*[1.0] * 500, *[100.0] * 500])
    assert quick_then_slow.percentiles()["p90"] == pytest.approx(100, rel=0.01)


def test_kinds_of_topics() -> None:
    kinds = {
        "orders": "normal", "%RETRY%g": "retry", "%DLQ%g": "dead letters", "TBW102": "system",
        "rmq_sys_x": "system", "c1": "system", "b1": "system", "c1_REPLY_TOPIC": "system",
    }  # fmt: skip
    assert {name: kind_of_topic(name, ["c1"], ["b1"]) for name in kinds} == kinds


def test_patterns_pairs_and_permissions() -> None:
    assert matching_names(["b", "ab", "a"], "a*") == ["a", "ab"]
    assert pairs_of(["a=b=c", "d="]) == {"a": "b=c", "d": ""}
    assert [parse_perm(text) for text in ("rw", "R", "w", "none", "6")] == [6, 4, 2, 0, 6]
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        pairs_of(["a"])
    with pytest.raises(ConfigError, match="not one of"):
        parse_perm("x")


def test_bodies(tmp_path: Path) -> None:
    file = tmp_path / "body"
    file.write_bytes(b"a\n\nb\n")
    assert read_bodies("hi", None, lines=False) == [b"hi"]
    assert read_bodies(None, file, lines=False) == [b"a\n\nb\n"]
    assert read_bodies(None, file, lines=True) == [b"a", b"b"]
    with pytest.raises(ConfigError, match="either"):
        read_bodies("hi", file, lines=False)
    with pytest.raises(ConfigError, match="No such file"):
        read_bodies(None, file.with_name("x"), lines=False)


def test_units() -> None:
    assert (plural(1, "topic"), plural(1200, "topic")) == ("1 topic", "1,200 topics")
    assert (format_size(100), format_size(1536), format_size(3 * 1024**3)) == (
        "100 B",
        "1.5 KiB",
        "3.0 GiB",
    )
    assert format_duration(3_700_000) == "1 h 1 min"
    assert format_time(0) is None
    assert format_time_ms(1_700_000_000_007).endswith(".007")
