"""`mqadmin` and `tianzhou mqadmin`: RocketMQ's subcommands, translated to Tianzhou's commands.

`table` lists every subcommand of 4.9 and 5.x with its options and the command that it is translated
to. The output is that of the command. An option without a counterpart is rejected, not ignored. As
with the original there is no confirmation: `mqadmin deleteTopic` deletes.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

import typer

from tianzhou.cli.mqadmin.table import ALIASES, SECOND_NAMES, Alias
from tianzhou.cli.mqadmin.translate import GivenOptions
from tianzhou.cli.shared.terminal import FAILED, OK, USAGE_ERROR, print_error, print_line

app = typer.Typer(name="mqadmin", add_completion=False)


class Parsed(NamedTuple):
    """Options of a subcommand by short name, and the nameservers."""

    values: dict[str, str]
    namesrv: str | None
    wants_help: bool


class UsageError(Exception):
    """Invalid use of a subcommand; the text says why."""


class UnsupportedOption(Exception):
    """An option of the original without a counterpart."""


@app.command(
    "mqadmin",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def mqadmin(context: typer.Context) -> None:
    """Run a subcommand of RocketMQ's mqadmin; list: `tianzhou mqadmin help`."""
    raise typer.Exit(run(context.args, "tianzhou mqadmin"))


def run(arguments: Sequence[str], command: str = "mqadmin") -> int:
    """Run a subcommand; returns the exit code."""
    name = arguments[0] if arguments else "help"
    rest = list(arguments[1:])
    if name in ("help", "-h", "--help"):
        return _help(command, rest)
    name = SECOND_NAMES.get(name, name)
    alias = ALIASES.get(name)
    if alias is None:
        print_error(command, f"there is no subcommand {name!r}; see `{command} help`")
        return USAGE_ERROR
    if alias.build is None:
        print_error(f"{command} {name}", alias.why)
        return FAILED
    try:
        parsed = parse(alias, rest)
        if parsed.wants_help:
            print_line(usage(command, name, alias))
            return OK
        translated = build(alias, parsed)
    except UsageError as e:
        print_error(f"{command} {name}", f"{e}; see `{command} help {name}`")
        return USAGE_ERROR
    except UnsupportedOption as e:
        print_error(f"{command} {name}", e)
        return FAILED
    from tianzhou.cli.app import main

    return main(translated)


def parse(alias: Alias, arguments: Sequence[str]) -> Parsed:
    """Options as commons-cli reads them: -t X, -tX, --topic X, --topic=X. Raises UsageError."""
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
        # Some long names end with a blank, which may be left out.
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
    """Whether an option takes a value; the suffix of the option in the table."""

    NEVER = ""
    ALWAYS = "="
    IF_ONE_FOLLOWS = "?"
    """A switch in some releases, an option with a value in others."""


class Option(NamedTuple):
    """An option of a subcommand."""

    short: str
    """Empty if it has only a long name."""
    long: str
    arity: Arity

    @property
    def name(self) -> str:
        """The name in `GivenOptions`."""
        return self.short or self.long

    @property
    def spellings(self) -> list[str]:
        return [f"-{self.short}", f"--{self.long}"] if self.short else [f"--{self.long}"]


def _has_value(option: Option, rest: Sequence[str], is_attached: bool) -> bool:
    if option.arity is Arity.IF_ONE_FOLLOWS:
        return is_attached or bool(rest and not rest[0].startswith("-"))
    return option.arity is Arity.ALWAYS


def options_of(alias: Alias) -> Iterator[Option]:
    """Parse the options of a subcommand from the table."""
    for each in alias.options.split():
        names = each.rstrip("=?")
        short, _, long = names.partition("/")
        yield Option(short, long.replace("_", " "), Arity(each[len(names) :]))


def _spellings(alias: Alias) -> Iterator[tuple[str, Option]]:
    for option in options_of(alias):
        for spelling in option.spellings:
            yield spelling, option


def build(alias: Alias, parsed: Parsed) -> list[str]:
    """The arguments of our command line. Raises UsageError, UnsupportedOption."""
    assert alias.build is not None
    given = GivenOptions(parsed.values)
    try:
        build = alias.build
        translated = given.expand(build) if isinstance(build, str) else build(given)
    except KeyError as e:
        long = next(each.long for each in options_of(alias) if each.name == e.args[0])
        raise UsageError(f"option -{e.args[0]} ({long}) is missing") from e
    unsupported = sorted(set(parsed.values) - given.used)
    if unsupported:
        ours = f"tianzhou {' '.join(translated[:2])}"
        raise UnsupportedOption(
            f"option -{unsupported[0]} is not supported; omit it, or see `{ours} --help`"
        )
    return [*translated, "--namesrv", parsed.namesrv] if parsed.namesrv else translated


def _help(command: str, rest: Sequence[str]) -> int:
    if not rest:
        print_line(
            f"The subcommands of RocketMQ's mqadmin. Options of one: `{command} help NAME`.\n"
        )
        width = max(map(len, ALIASES))
        for name, alias in ALIASES.items():
            print_line(f"  {name:{width}}  {alias.ours or 'not supported: ' + alias.why}")
        return OK
    name = SECOND_NAMES.get(rest[0], rest[0])
    chosen = ALIASES.get(name)
    if chosen is None:
        print_error(command, f"there is no subcommand {rest[0]!r}; see `{command} help`")
        return USAGE_ERROR
    print_line(usage(command, name, chosen))
    return OK


def usage(command: str, name: str, alias: Alias) -> str:
    """The usage of a subcommand, and the command that it is translated to."""
    lines = [f"usage: {command} {name} [-n ADDR] [options]"]
    values = {Arity.NEVER: "", Arity.ALWAYS: " VALUE", Arity.IF_ONE_FOLLOWS: " [VALUE]"}
    lines += [
        f"  {', '.join(option.spellings)}{values[option.arity]}" for option in options_of(alias)
    ]
    lines.append(
        f"translated to: tianzhou {alias.ours}" if alias.ours else f"not supported: {alias.why}"
    )
    return "\n".join(lines)
