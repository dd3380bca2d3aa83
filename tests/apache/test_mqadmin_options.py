"""Our `mqadmin` has every sub command and every option of the stock one.

They are read from the jars by reflection: the names, whether an option has a value, and whether it
is required. The command that our alias builds of each is parsed by our own command line.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import pytest

from tests.support.apache.servers import TOOLS_ONLY, VERSIONS, Shell
from tests.support.command_words import check_words
from tests.support.gate import NEWEST, gated
from tianzhou.cli.mqadmin.command import build, parse
from tianzhou.cli.mqadmin.table import ALIASES, SECOND_NAMES, Alias

pytestmark = pytest.mark.apache

COMMAND_COUNTS = {VERSIONS[0]: 57, TOOLS_ONLY: 56, VERSIONS[1]: 96}
"""Only 4.9.7 has getAclConfig: 4.9.8 removed it."""
NAMESRV = ("-n", "ns:9876")
TRUTH = ("true", "false")
SAMPLES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "admin", "calculate", "consumeBroadcastEnable", "consumeEnable", "consumeFromMinEnable",
            "consumeMessageOrderly", "force", "hasUnitSub", "msgTraceEnable",
            "notifyConsumerIdsChanged", "offline", "order", "print log", "print msg", "printBody",
            "removeOffset", "sendMessage", "showClientIP", "unit", "updateAllBroker",
        ),
        TRUTH,
    ),
    "attributes": ("+a=b,-c",),
    "bodyFormat": ("gbk",),
    "charsetName": ("gbk",),
    "keyType": ("K", "T"),
    "method": ("get", "delete"),
    "mode": ("POP", "PULL"),
    "timeoutMillis": ("3000",),
    "topicPerms": ("a=PUB",),
    "groupPerms": ("a=SUB",),
}  # fmt: skip
"""Values for the option with this long name; any other gets a number."""

NEEDED_ALL_THE_SAME = {"resetMasterFlushOffset": ("offset",)}
"""Options that the original needs although it does not declare them required."""


class StockOption(NamedTuple):
    """An option as the jar describes it."""

    short: str | None
    long: str
    takes_value: bool
    is_required: bool

    @property
    def name(self) -> str:
        return self.short or self.long

    @property
    def values(self) -> tuple[str, ...]:
        return SAMPLES.get(self.long, ("1",)) if self.takes_value else ("true",)

    def arguments(self, value: str, *, as_long: bool = False) -> list[str]:
        spelling = f"--{self.long}" if as_long or not self.short else f"-{self.short}"
        return [spelling, value] if self.takes_value else [spelling]


def sub_commands(shell: Shell) -> dict[str, list[StockOption]]:
    """The options of each sub command, without those that all have."""
    listed: dict[str, list[dict[str, object]]] = shell.ask("sub_commands")
    return {
        name: [
            StockOption(
                None if each.get("short") is None else str(each["short"]),
                str(each["long"]).strip(),
                bool(each["takesValue"]),
                bool(each["required"]),
            )
            for each in options
            if each.get("short") not in ("n", "h")
        ]
        for name, options in listed.items()
    }


def alias_of(name: str) -> Alias:
    return ALIASES[SECOND_NAMES.get(name, name)]


def required(
    command: str, options: Iterable[StockOption], besides: StockOption | None = None
) -> list[str]:
    """The required options; a broker's address where either that or a cluster is required."""
    needed = NEEDED_ALL_THE_SAME.get(command, ())
    arguments = [
        argument
        for each in options
        if (each.is_required or each.long in needed) and each is not besides
        for argument in each.arguments(each.values[0])
    ]
    where = [each for each in options if each.long in ("brokerAddr", "clusterName", "cluster")]
    if where and not any(each.is_required or each is besides for each in where):
        arguments += where[0].arguments("h:1")
    return arguments


@pytest.mark.parametrize("version", gated(COMMAND_COUNTS, {NEWEST}))
def test_every_sub_command_is_known(shells: Callable[[str], Shell], version: str) -> None:
    names = sub_commands(shells(version))
    assert len(names) == COMMAND_COUNTS[version]
    assert [name for name in names if SECOND_NAMES.get(name, name) not in ALIASES] == []


@pytest.mark.parametrize("version", gated(COMMAND_COUNTS, {NEWEST}))
def test_every_option_is_parsed_with_its_arity(
    shells: Callable[[str], Shell], version: str
) -> None:
    for name, options in sub_commands(shells(version)).items():
        for option in options:
            for as_long in (False, True):
                arguments = [*option.arguments("value", as_long=as_long), *NAMESRV]
                parsed = parse(alias_of(name), arguments)
                given = "value" if option.takes_value else "true"
                # A flag that has a value in another release has a different long name.
                assert list(parsed.values.values()) == [given], (name, option)
                assert option.name in parsed.values or as_long, (name, option)
                assert parsed.namesrv == NAMESRV[1], (name, option)


@pytest.mark.parametrize("version", gated(COMMAND_COUNTS, {NEWEST}))
def test_every_option_is_translated_to_a_valid_command(
    shells: Callable[[str], Shell], version: str
) -> None:
    for name, options in sub_commands(shells(version)).items():
        alias = alias_of(name)
        if alias.build is None:
            assert alias.why, name
            continue
        check_words(build(alias, parse(alias, required(name, options))))
        for option in options:
            for value in option.values:
                arguments = [*required(name, options, option), *option.arguments(value)]
                check_words(build(alias, parse(alias, arguments)))
