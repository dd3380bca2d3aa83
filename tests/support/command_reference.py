"""Generates the screens and the reference of docs/cli.md by running the command line.

    python -m tests.support.command_reference        updates the page

The prose of the page is edited manually. Each line "$ tianzhou ..." in a `console` block is run in
order on a cluster with fixed content, and its output replaces the lines below it. Values that
differ between runs (times, ports, ids) are masked by text of the same length, so that columns stay
aligned. Help and measurements are rendered on a terminal, with frames and progress bars. The lists
between <!-- reference --> and <!-- mqadmin --> marks are generated from the commands.
"""

import asyncio
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import typer

from tests.support.brokers import eventually
from tests.support.command_line import run_words
from tests.support.terminal import Terminal, lines_of
from tianzhou.cli.app import app
from tianzhou.cli.command_tree import (
    COMMAND_GROUPS,
    SERVER_COMMANDS,
    SINGLE_COMMANDS,
    LazyCommand,
    LazyGroup,
)
from tianzhou.cli.mqadmin.table import ALIASES
from tianzhou.client.consumer.push import PushConsumer
from tianzhou.client.message import ReceivedMessage
from tianzhou.testing import Cluster

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
WIDTH = 104
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMON = (
    "namesrv", "context", "access_key", "secret_key", "timeout_s", "as_json", "watch", "every_s",
    "once", "dry_run", "yes", "help",
)  # fmt: skip


# -- screens ---------------------------------------------------------------------------------------


async def render(page: str, folder: Path) -> str:
    """The page with all screens and lists generated again."""
    os.environ.update(
        COLUMNS=str(WIDTH), TIANZHOU_CONFIG_DIR=str(folder), NAMESRV_ADDR="", NO_COLOR="1"
    )
    async with Cluster(brokers=2, topics={"orders": 2, "invoices": 2}) as cluster:
        os.environ["NAMESRV_ADDR"] = cluster.namesrv_address
        await _fill()
        async with AsyncExitStack() as stack:
            for number, tags in enumerate(("paid", "paid || sent")):
                await stack.enter_async_context(_member(cluster, number, tags))
            # Members rebalance every 20 s if a notification was missed.
            await eventually(_settled, "both members hold their queues", 60)
            masks = Masks(cluster)
            parts: list[str] = []
            end = 0
            for block in _BLOCK.finditer(page):
                parts += [page[end : block.start(1)], await _screen(block[1], masks)]
                end = block.end(1)
            page = "".join([*parts, page[end:]])
    page = _between(page, "reference", "\n".join(reference()))
    return _between(page, "mqadmin", "\n".join(mqadmin_list()))


def _between(page: str, mark: str, text: str) -> str:
    start, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->"
    head, _, rest = page.partition(start)
    _, _, tail = rest.partition(end)
    return f"{head}{start}{text}\n{end}{tail}"


async def _screen(text: str, masks: "Masks") -> str:
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            lines.append(line)
            lines += await _run(line[2:], masks)
    return "".join(f"{line}\n" for line in lines)


async def _run(command: str, masks: "Masks") -> list[str]:
    words = shlex.split(masks.unmask(command))
    if words[:3] == ["tianzhou", "message", "show"]:
        await eventually(_settled, "the members have consumed what was sent", 60)
    if "--help" in words or words[1] == "bench":
        return [masks.mask(line) for line in await asyncio.to_thread(_drawn, words[1:])]
    if words[0] == "mqadmin":
        ran = await asyncio.to_thread(run_words, words[1:], mqadmin=True)
    else:
        ran = await asyncio.to_thread(run_words, words[1:])
    return [masks.mask(line).rstrip() for line in (ran.err + ran.out).splitlines()]


def _drawn(words: list[str]) -> list[str]:
    terminal = Terminal(words, columns=WIDTH)
    try:
        terminal.ended()
        return lines_of(terminal.seen)
    finally:
        terminal.close()


async def _fill() -> None:
    """The content of the cluster: a few messages, three groups, dead letters."""
    commands = [
        *(f"message send orders 'order {n} is paid' --tag paid --key order-{n} "
          f"--property amount={n}0 --queue 0 --broker broker-0" for n in (1, 2, 3)),
        "message send orders 'order 1 is sent' --tag sent --key order-1 --queue 1 "
        "--broker broker-1",
        "group create billing --retries 3",
        "group create archive",
        "offset reset archive orders --to earliest --yes",
        "topic update %DLQ%archive --or-create --queues 1 --broker broker-0",
        "message send %DLQ%archive 'order 0 cannot be stored' --property RETRY_TOPIC=orders",
    ]  # fmt: skip
    for command in commands:
        ran = await asyncio.to_thread(run_words, shlex.split(command))
        assert ran.code == 0, (command, ran)


async def _settled() -> bool:
    """Whether every queue has an owner and a committed offset: from then on nothing changes."""
    ran = await asyncio.to_thread(run_words, ["group", "show", "billing", "--json"])
    queues: list[dict[str, Any]] = ran.json["queues"] if ran.code == 0 else []
    settled = [each for each in queues if each["client_id"] and not each["lag"]]
    return len(settled) == len(queues) == 6


class _member:
    """A consumer that is online while the screens are generated."""

    def __init__(self, cluster: Cluster, number: int, tags: str) -> None:
        self._consumer = PushConsumer(
            "billing",
            namesrv=cluster.namesrv_address,
            instance_name=f"billing-{number}",
            client_ip="10.0.0.9",
            persist_offsets_ms=100,
        )
        self._consumer.subscribe("orders", self._take, tags=tags)

    async def _take(self, message: ReceivedMessage) -> None:
        del message

    async def __aenter__(self) -> None:
        await self._consumer.start()

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.close()


class Masks:
    """Replace by text of the same length: columns stay aligned."""

    def __init__(self, cluster: Cluster) -> None:
        ports = [cluster.namesrv_address, *cluster.broker_addresses.values()]
        shown = ("127.0.0.1:19876", "127.0.0.1:10911", "127.0.0.1:20911")
        self._addresses = dict(zip(ports, shown, strict=True))
        self._ids: dict[str, str] = {}

    def mask(self, line: str) -> str:
        for real, shown in self._addresses.items():
            line = line.replace(real, shown)
        line = re.sub(
            r"127\.0\.0\.1:(\d{5})\b",
            lambda found: found[0] if found[0] in self._addresses.values() else "127.0.0.1:40000",
            line,
        )
        line = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "2026-01-31 12:00:00", line)
        line = re.sub(r"(2026-01-31 12:00:00\.)\d{3}", r"\g<1>000", line)
        line = re.sub(r"\b[0-9A-F]{32}\b", lambda found: self._id(found[0]), line)
        return re.sub(r"\b\d{13}\b", "1769860800000", line)

    def _id(self, real: str) -> str:
        number = len(self._ids) + 1
        return self._ids.setdefault(real, f"0A00000900002A139A5C0D1F7E5A{number:04X}")

    def unmask(self, command: str) -> str:
        """A masked id or address in a command means the real one."""
        for real, shown in (*self._ids.items(), *self._addresses.items()):
            command = command.replace(shown, real)
        return command


def normal(page: str) -> str:
    """The page without values that no mask covers: rates, sizes of disks, ages, widths."""
    page = re.sub(r"\b[\d,]+\.\d+\b", "0.0", page)
    page = re.sub(r"\b\d+%", "0%", page)
    page = re.sub(r"\b(\d+ (d|h|min) \d+ (h|min|s)|0\.0 s)\b", "0.0 s", page)
    page = re.sub(r"\b\d+ to \d+\b", "0 to 0", page)
    # The speed of the machine that generated the page.
    page = re.sub(r"^sending .*$", "sending", page, flags=re.MULTILINE)
    page = re.sub(r"[\d,.]+(/s| [KMG]?i?B/s)", r"0/s", page)
    # The number of requests waiting in a broker is in the line with its disk.
    page = re.sub(
        r"^broker-\d .*%.*$", lambda found: re.sub(r"\d+", "0", found[0]), page, flags=re.MULTILINE
    )
    return re.sub(r"[ ─]+", " ", page)


# -- the lists -------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, Any]]:
    """Every command of the typer tree, by its name."""
    root: Any = typer.main.get_command(app)
    context = root.make_context("tianzhou", ["version"], resilient_parsing=True)
    for name, spec in (SERVER_COMMANDS | COMMAND_GROUPS).items():
        if name == "mqadmin":
            continue
        if name in SINGLE_COMMANDS:
            yield name, LazyCommand(name, spec).loaded()
            continue
        yield from _below(name, LazyGroup(name, spec), context)
    for name in ("stop", "completion", "version"):
        yield name, root.get_command(context, name)


def _below(words: str, group: Any, context: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from _below(f"{words} {name}", command, context)
        else:
            yield f"{words} {name}", command


def reference() -> Iterator[str]:
    """Every command with its arguments and options, as Markdown."""
    for words, command in commands():
        parameters = [each for each in command.params if each.name not in _COMMON]
        arguments = [each for each in parameters if each.param_type_name == "argument"]
        options = [each for each in parameters if each.param_type_name == "option"]
        shown = " ".join(_metavar(each) for each in arguments)
        yield f"### tianzhou {words}"
        yield ""
        yield f"`tianzhou {words}{' ' + shown if shown else ''}`"
        yield ""
        yield _paragraphs(command.help or "")
        more = [name for name in ("as_json", "watch", "once", "dry_run", "yes")
                if name in {each.name for each in command.params}]  # fmt: skip
        if more:
            flags = {"as_json": "--json", "dry_run": "--dry-run"}
            listed = ", ".join(f"`{flags.get(name, '--' + name)}`" for name in more)
            yield f"Also: {listed}."
        yield ""
        if arguments or options:
            yield "| | |"
            yield "|---|---|"
            for each in arguments:
                yield f"| `{_metavar(each)}` | {_cell(each)} |"
            for each in options:
                flags_shown = ", ".join(f"`{flag}`" for flag in (*each.opts, *each.secondary_opts))
                yield f"| {flags_shown} | {_cell(each)} |"
            yield ""


def _metavar(parameter: Any) -> str:  # noqa: ANN401
    text = str(parameter.metavar or parameter.name or "").upper().strip("[]{}")
    return text if parameter.required else f"[{text}]"


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _cell(parameter: Any) -> str:  # noqa: ANN401
    return str(parameter.help or "").replace("|", "\\|")


def mqadmin_list() -> Iterator[str]:
    """Every sub command of mqadmin, and our command for it."""
    yield "| mqadmin | tianzhou |"
    yield "|---|---|"
    for name, alias in sorted(ALIASES.items(), key=lambda pair: pair[0].lower()):
        yield f"| `{name}` | {f'`{alias.ours}`' if alias.ours else 'not supported: ' + alias.why} |"


def main() -> None:
    """Update the page."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="cli-docs-") as folder:
        page = asyncio.run(render(PAGE.read_text(), Path(folder)))
    PAGE.write_text(page)
    sys.stdout.write(f"{PAGE}: written\n")


if __name__ == "__main__":
    main()
