"""Contexts, and the cluster that a command uses."""

import json
import stat
from pathlib import Path

import pytest

from tianzhou.cli.app import main
from tianzhou.cli.shared.command import Options, credentials_of, tls_of
from tianzhou.cli.shared.context_file import (
    Context,
    Contexts,
    contexts_path,
    load_contexts,
    resolve,
    save_contexts,
)
from tianzhou.errors import ConfigError

KNOWN = Contexts(current="prod", contexts={"prod": Context("p:1"), "dev": Context("d:1")})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIANZHOU_CONFIG_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("flag", "name", "environ", "expected"),
    [
        ("f:1", "dev", "e:1", "f:1"),
        (None, "dev", "e:1", "d:1"),
        (None, None, "e:1", "e:1"),
        (None, None, "", "p:1"),
    ],
)
def test_precedence_of_options(
    flag: str | None, name: str | None, environ: str, expected: str
) -> None:
    assert resolve(flag, name, {"NAMESRV_ADDR": environ}, KNOWN).namesrv == expected


def test_default_is_this_machine() -> None:
    assert resolve(None, None, {}, Contexts()).namesrv == "127.0.0.1:9876"


def test_unknown_context() -> None:
    with pytest.raises(ConfigError, match="existing contexts: dev, prod"):
        resolve(None, "test", {}, KNOWN)


def test_path_of_contexts_file() -> None:
    assert contexts_path({"TIANZHOU_CONFIG_DIR": "/x"}) == Path("/x/contexts.json")
    assert contexts_path({"XDG_CONFIG_HOME": "/y"}) == Path("/y/tianzhou/contexts.json")


def test_file_is_readable_by_owner_only(folder: Path) -> None:
    path = folder / "deep" / "contexts.json"
    save_contexts(path, KNOWN)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_contexts(path) == KNOWN


def test_damaged_file_is_an_error(folder: Path) -> None:
    (folder / "contexts.json").write_text("{")
    with pytest.raises(ConfigError, match="repair or delete it"):
        load_contexts(folder / "contexts.json")


def test_account_needs_both_keys() -> None:
    with pytest.raises(ConfigError, match="both"):
        credentials_of(Context("a:1"), Options(access_key="a"))
    found = credentials_of(Context("a:1", "k", "s"), Options())
    assert found is not None
    assert found.access_key == "k"


def test_connections_with_tls(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tls_of(Context("a:1")) is None
    own = tls_of(Context("a:1", tls=True))
    assert own is not None
    assert own.trusted is None, "the system's authorities are trusted"
    file = folder / "ca.pem"
    assert main(["context", "add", "safe", "-n", "a:1", "--tls-ca", str(file)]) == 2
    assert "no such file" in capsys.readouterr().err
    file.touch()
    assert main(["context", "add", "safe", "-n", "a:1", "--tls-ca", str(file)]) == 0
    found = tls_of(load_contexts(folder / "contexts.json").contexts["safe"])
    assert found is not None
    assert found.trusted == file


def test_context_commands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["context", "list"]) == 0
    assert "no contexts; add one" in capsys.readouterr().out
    assert main(["context", "add", "prod", "-n", "ns1:9876;ns2:9876"]) == 0
    assert "now current" in capsys.readouterr().out, "the first one is"
    account = ["--access-key", "k", "--secret-key", "s"]
    assert main(["context", "add", "dev", "--namesrv", "d:1", *account, "--tls"]) == 0
    assert main(["context", "use", "dev"]) == 0
    capsys.readouterr()
    assert main(["context", "list"]) == 0
    assert "ns1:9876;ns2:9876" in capsys.readouterr().out
    assert main(["context", "list", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["current"] == "dev"
    assert told["contexts"]["dev"]["secret_key"] == "***"  # noqa: S105 - a mask
    assert main(["context", "remove", "dev", "--dry-run"]) == 0
    assert main(["context", "remove", "dev", "--yes"]) == 0
    assert load_contexts(folder / "contexts.json") == Contexts(
        contexts={"prod": Context("ns1:9876;ns2:9876")}
    )


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["use", "x"], 1, "there is no context 'x'"),
        (["remove", "x", "--yes"], 1, "there is no context 'x'"),
        (["add", "x", "-n", "nowhere"], 2, "has no port"),
        (["add", "x", "-n", "a:1", "--access-key", "k"], 2, "both"),
        (["add", "x"], 2, "--namesrv"),
    ],
)
def test_usage_errors_of_context_commands(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, told: str
) -> None:
    assert main(["context", *words]) == code
    out, error = capsys.readouterr()
    assert out == ""
    assert told in error
    assert error.count("\n") == 1
