"""`tianzhou broker --help`: what starts a broker also leads to what manages one."""

import re

import pytest

from tianzhou.cli.commands import broker as managing
from tianzhou.cli.serve import broker as serving


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        serving.main(["--help"])
    shown = capsys.readouterr().out
    found = shown[shown.index("manage running brokers:") :]
    names = re.findall(r"[a-z-]+", found.replace("tianzhou broker", "|"))
    verbs = {each.name for each in managing.app.registered_commands}
    assert verbs <= set(names), verbs - set(names)
