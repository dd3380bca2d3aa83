"""`mqadmin` and `tianzhou mqadmin`: RocketMQ's sub commands with their options, done by our verbs.

Each sub command of 4.9 and 5.x is in one table: its options, and the command of ours that does it.
The output is ours. An option that our command has no counterpart for is refused, not overlooked. As
with the original nothing is asked: who types `mqadmin deleteTopic` means it.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

import typer

from tianzhou.cli.mqadmin.table import ALIASES, SECOND_NAMES, Alias
from tianzhou.cli.mqadmin.translate import Given
from tianzhou.cli.shared.terminal import FAILED, OK, USAGE_ERROR, print_error, print_line

app = typer.Typer(name="mqadmin", add_completion=False)


class Parsed(NamedTuple):
    """Options of a sub command by their short names, and the nameservers."""

    values: dict[str, str]
    namesrv: str | None
    wants_help: bool


class UsageError(Exception):
    """A sub command was used wrongly; the text says how."""


class UnsupportedOption(Exception):
    """An option of the original that we have no counterpart for."""


@app.command(
    "mqadmin",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def mqadmin(context: typer.Context) -> None:
    """Run a sub command of RocketMQ's mqadmin; `tianzhou mqadmin help` lists them."""
    raise typer.Exit(run(context.args, "tianzhou mqadmin"))


def run(arguments: Sequence[str], command: str = "mqadmin") -> int:
    """Run a sub command; returns the exit code."""
    name = arguments[0] if arguments else "help"
    rest = list(arguments[1:])
    if name in ("help", "-h", "--help"):
        return _help(command, rest)
    name = SECOND_NAMES.get(name, name)
    alias = ALIASES.get(name)
    if alias is None:
        print_error(command, f"there is no sub command {name!r}; `{command} help` lists them")
        return USAGE_ERROR
    if alias.build is None:
        print_error(f"{command} {name}", alias.why)
        return FAILED
    try:
        parsed = parse(alias, rest)
        if parsed.wants_help:
            print_line(usage(command, name, alias))
            return OK
        words = build(alias, parsed)
    except UsageError as e:
        print_error(f"{command} {name}", f"{e}; `{command} help {name}` shows its options")
        return USAGE_ERROR
    except UnsupportedOption as e:
        print_error(f"{command} {name}", e)
        return FAILED
    from tianzhou.cli.app import main

    return main(words)


def parse(alias: Alias, arguments: Sequence[str]) -> Parsed:
    """Options as commons-cli reads them: -t X, -tX, --topic X, --topic=X. Raises Misuse."""
    by_name = dict(_spellings(alias))
    values: dict[str, str] = {}
    namesrv: str | None = None
    wants_help = False
    queue = list(arguments)
    while queue:
        word = queue.pop(0)
        spelling, equals, attached = word.partition("=")
        if word in ("-h", "--help"):
            wants_help = True
            continue
        is_namesrv = spelling in _NAMESRV_SPELLINGS
        # Some long names end with a blank, which whoever types it may leave out.
        option = by_name.get(spelling.strip())
        if option is None and not is_namesrv and word[:2] in by_name and word[:2] != "--":
            spelling, equals, attached = word[:2], "=", word[2:]
            option = by_name[spelling]
        if option is None and not is_namesrv:
            raise UsageError(f"unknown option {word!r}")
        if option is not None and not _has_value(option, queue, bool(equals)):
            values[option.name] = "true"
            continue
        value = attached if equals else (queue.pop(0) if queue else None)
        if value is None:
            raise UsageError(f"option {word} needs a value")
        if option is None:
            namesrv = value
        else:
            values[option.name] = value.strip()
    return Parsed(values, namesrv, wants_help)


_NAMESRV_SPELLINGS = ("-n", "--namesrvAddr", "--namesrv", "--nameserverAddr")


class Arity(StrEnum):
    """Whether an option takes a value: by the sign behind it in the table."""

    NEVER = ""
    ALWAYS = "="
    IF_ONE_FOLLOWS = "?"
    """It is a switch in one release, and takes a value in another."""


class Option(NamedTuple):
    """An option of a sub command."""

    short: str
    """Empty if it has only a long name."""
    long: str
    arity: Arity

    @property
    def name(self) -> str:
        """By what `Given` knows it."""
        return self.short or self.long

    @property
    def spellings(self) -> list[str]:
        return [f"-{self.short}", f"--{self.long}"] if self.short else [f"--{self.long}"]


def _has_value(option: Option, rest: Sequence[str], is_attached: bool) -> bool:
    if option.arity is Arity.IF_ONE_FOLLOWS:
        return is_attached or bool(rest and not rest[0].startswith("-"))
    return option.arity is Arity.ALWAYS


def options_of(alias: Alias) -> Iterator[Option]:
    """The options of a sub command, as the table writes them."""
    for each in alias.options.split():
        names = each.rstrip("=?")
        short, _, long = names.partition("/")
        yield Option(short, long.replace("_", " "), Arity(each[len(names) :]))


def _spellings(alias: Alias) -> Iterator[tuple[str, Option]]:
    for option in options_of(alias):
        for spelling in option.spellings:
            yield spelling, option


def build(alias: Alias, parsed: Parsed) -> list[str]:
    """The words of our own command line. Raises Misuse if an option is missing, and Unmet."""
    assert alias.build is not None
    given = Given(parsed.values)
    try:
        words = alias.build(given)
    except KeyError as e:
        long = next(each.long for each in options_of(alias) if each.name == e.args[0])
        raise UsageError(f"option -{e.args[0]} ({long}) is missing") from e
    unmet = sorted(set(parsed.values) - given.used)
    if unmet:
        ours = f"tianzhou {' '.join(words[:2])}"
        raise UnsupportedOption(
            f"option -{unmet[0]} is not supported; leave it out, or see `{ours} --help`"
        )
    return [*words, "--namesrv", parsed.namesrv] if parsed.namesrv else words


def _help(command: str, rest: Sequence[str]) -> int:
    if not rest:
        print_line(f"The sub commands of RocketMQ's mqadmin; `{command} help NAME` shows one.\n")
        width = max(map(len, ALIASES))
        for name, alias in ALIASES.items():
            print_line(f"  {name:{width}}  {alias.ours or 'not here: ' + alias.why}")
        return OK
    name = SECOND_NAMES.get(rest[0], rest[0])
    chosen = ALIASES.get(name)
    if chosen is None:
        print_error(command, f"there is no sub command {rest[0]!r}; `{command} help` lists them")
        return USAGE_ERROR
    print_line(usage(command, name, chosen))
    return OK


def usage(command: str, name: str, alias: Alias) -> str:
    """How a sub command is used, and which command of ours does it."""
    lines = [f"usage: {command} {name} [-n ADDR] [options]"]
    values = {Arity.NEVER: "", Arity.ALWAYS: " VALUE", Arity.IF_ONE_FOLLOWS: " [VALUE]"}
    lines += [
        f"  {', '.join(option.spellings)}{values[option.arity]}" for option in options_of(alias)
    ]
    lines.append(f"done by: {alias.ours}" if alias.ours else f"not here: {alias.why}")
    return "\n".join(lines)
