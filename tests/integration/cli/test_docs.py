"""docs/cli.md matches the output of commands and lists all of them; tests use all of them."""

from pathlib import Path

import pytest
from tests.support.command_reference import PAGE, commands, normal, render
from tests.support.commands_tried import Tried, everything, tried

TESTS = Path(__file__).resolve().parents[2]
ELSEWHERE = {
    "store": "unit/store/offline/test_store_commands.py",
    "pipeline": "unit/cli/commands/test_pipeline.py",
    "stop": "integration/namesrv/test_process.py",
}
"""Commands whose tests run in other processes, where they leave no notes."""


async def test_cli_page_matches_output_of_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COLUMNS", "TIANZHOU_CONFIG_DIR", "NAMESRV_ADDR", "NO_COLOR"):
        monkeypatch.setenv(name, "")
    page = PAGE.read_text()
    fresh = await render(page, tmp_path)
    assert normal(fresh).splitlines() == normal(page).splitlines(), (
        "python -m tests.support.command_reference writes it anew"
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


@pytest.mark.usefixtures("all_of_the_command_line")
def test_every_command_and_option_is_tested() -> None:
    untried = [each for each in everything() if each not in tried and not is_tried_elsewhere(each)]
    assert not untried, ", ".join(map(str, untried))


def is_tried_elsewhere(each: Tried) -> bool:
    """Whether the test file of a command group contains a command and its option."""
    noun, *verb = each.words.split()
    if noun not in ELSEWHERE:
        return False
    text = (TESTS / ELSEWHERE[noun]).read_text()
    spelled = [*verb, each.flag] if each.flag.startswith("-") else verb
    return all(f'"{word}"' in text for word in spelled)
