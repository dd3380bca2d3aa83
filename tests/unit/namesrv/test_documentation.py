"""docs/namesrv.md lists every request code and setting."""

import re
from pathlib import Path

from tianzhou.config.settings import format_value, settings_of
from tianzhou.namesrv.config import NamesrvConfig
from tianzhou.namesrv.dispatch import HANDLERS
from tianzhou.protocol.codes import RequestCode

PAGE = (Path(__file__).parents[3] / "docs" / "namesrv.md").read_text()


def test_every_supported_code_is_listed() -> None:
    listed = {int(code): name for code, name in re.findall(r"^\| (\d+) \| (\w+) \|", PAGE, re.M)}
    answered = {code: RequestCode(code).name for code in HANDLERS}
    exit_codes = {0, 1, 2}
    assert {code: name for code, name in listed.items() if code not in exit_codes} == answered


def test_every_setting_is_listed_with_its_default_and_kind_of_change() -> None:
    rows = re.findall(
        r"^\| `([\w.]+)` \| (.*?) \| (local|restart|admin|live) \|", PAGE, re.MULTILINE
    )
    listed = {key: (default, change) for key, default, change in rows}
    home = str(Path.home())
    declared = {
        each.key: (
            format_value(getattr(NamesrvConfig(), each.name)).replace(home, "~"),
            each.change.value,
        )
        for each in settings_of(NamesrvConfig)
        if not each.key.startswith("tls")
    }
    declared["routeCacheSize"] = ("64 MiB", "local")
    assert listed == declared


def test_every_tls_setting_is_listed_with_its_property() -> None:
    rows = re.findall(r"^\| `(tls\w+)` \| `(tls[\w.]+)` \|", PAGE, re.MULTILINE)
    declared = {
        each.key: each.aliases[0]
        for each in settings_of(NamesrvConfig)
        if each.key.startswith("tls")
    }
    assert dict(rows) == declared
