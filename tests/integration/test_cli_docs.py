"""docs/cli.md shows what the commands print, lists all of them, and the tests use all of them."""

import re
from pathlib import Path

import pytest
from tests.integration.cli_docs import PAGE, commands, normal, render

TESTS = Path(__file__).resolve().parent.parent
ELSEWHERE = ("store ", "tls ", "stop", "completion", "version")
"""Commands with tests of their own, in places of their own."""


async def test_the_page_is_what_the_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COLUMNS", "TIANZHOU_CONFIG_DIR", "NAMESRV_ADDR", "NO_COLOR"):
        monkeypatch.setenv(name, "")
    page = PAGE.read_text()
    fresh = await render(page, tmp_path)
    assert normal(fresh).splitlines() == normal(page).splitlines(), (
        "python -m tests.integration.cli_docs writes it anew"
    )


def test_every_command_and_option_is_documented() -> None:
    page = PAGE.read_text()
    listed = list(commands())
    assert len(listed) > 50
    for words, command in listed:
        assert f"### tianzhou {words}\n" in page
        assert command.help, words
        for parameter in command.params:
            assert parameter.name == "help" or parameter.help, (words, parameter.name)


def test_every_command_and_option_is_tried() -> None:
    sources = [
        *(TESTS / "integration").glob("test_cli_*.py"),
        *(TESTS / "unit" / "cli").glob("*.py"),
    ]
    texts = [path.read_text() for path in sources if path != Path(__file__)]
    blocks = re.finditer(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    texts += [block[1] for block in blocks]
    everything = "\n".join(texts)
    untried: list[str] = []
    for words, command in commands():
        if words.startswith(ELSEWHERE):
            continue
        quoted = ", ".join(f'"{word}"' for word in words.split())
        if quoted not in everything and f"$ tianzhou {words}" not in everything:
            untried.append(words)
        for parameter in command.params:
            flags = [*parameter.opts, *parameter.secondary_opts]
            spelled = any(f'"{flag}"' in everything or f" {flag} " in everything for flag in flags)
            if parameter.param_type_name == "option" and not spelled:
                untried.append(f"{words} {flags[0]}")
    assert not untried
