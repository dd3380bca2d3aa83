"""`tianzhou pipeline`: the standard Spark jobs over topics, and what became of their runs."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from tianzhou.cli.contexts import Context
from tianzhou.cli.session import Options, Session, credentials_of, verb
from tianzhou.cli.show import Shown, moment, several, span, table
from tianzhou.errors import ConfigError

app = typer.Typer(name="pipeline", no_args_is_help=True, help="Run Spark jobs over topics.")

Database = Annotated[
    str | None,
    typer.Option(
        "--database", metavar="URL", help="Where results are: sqlite:///... or postgresql://"
    ),
]


@verb(app, "list", reads=True, examples=["tianzhou pipeline list", "tianzhou pipeline list --json"])
async def list_pipelines(session: Session) -> Shown:
    """List the pipelines."""
    with _extra():
        from tianzhou.spark.pipelines import catalog

    rows = [
        {"name": name, "summary": each.summary, "streams": each.streams}
        for name, each in catalog.PIPELINES.items()
    ]
    shown = table(
        ["!name", "what", "runs"],
        (
            (name, each.summary, "until stopped" if each.streams else "to its end")
            for name, each in catalog.PIPELINES.items()
        ),
    )
    note = "`tianzhou pipeline options NAME` shows what can be set"
    return Shown(rows, [shown], notes=[note])


@verb(app, "options", reads=True, examples=["tianzhou pipeline options topic-stats"])
async def options(
    session: Session, name: Annotated[str, typer.Argument(metavar="NAME", help="The pipeline.")]
) -> Shown:
    """Show the options of a pipeline and their defaults."""
    with _extra():
        from tianzhou.spark.pipelines import catalog

    found = {key: _text(value) for key, value in catalog.option_defaults(name).items()}
    return Shown(found, [table(["!option", "default"], found.items())])


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] - of texts
    return "" if value is None else str(value)


@verb(
    app, "run", endless=True,
    examples=[
        "tianzhou pipeline run topic-stats",
        "tianzhou pipeline run topic-stats --set days=2024-02-29 --set zone=Asia/Shanghai",
        "tianzhou pipeline run topic-stats --set midnight=true --database postgresql://db/stats",
        "tianzhou pipeline run backlog-alarm --set threshold=1000 --set notify=https://hooks/x",
    ],
)  # fmt: skip
async def run(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The pipeline.")],
    given: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="OPTION=VALUE", help="An option; may be repeated."),
    ] = None,
    database: Database = None,
) -> Shown:
    """Run a pipeline. What is wrong with its options is told before Spark is started."""
    pairs = cluster_pairs(session.target, session.options) | parse_pairs(given or [])
    if database is not None:
        pairs["database"] = database
    with _extra():
        from tianzhou.spark.pipelines import runner
    runner.check(name, pairs)

    def tell(line: str) -> None:
        session.err.print(Text(f"{name}: {line}", style="dim"), soft_wrap=True)

    outcome = await asyncio.to_thread(runner.run, name, pairs, tell=tell)
    note = f"{name}: {several(outcome.row_count, 'row')}" + (
        f" ({outcome.note})" if outcome.note else ""
    )
    return Shown(asdict(outcome), notes=[note])


@contextmanager
def _extra() -> Generator[None]:
    """For imports of what only the extra brings. Raises ConfigError."""
    try:
        yield
    except ModuleNotFoundError as e:
        raise ConfigError(f"pipelines need the extra: pip install 'tianzhou[spark]' ({e})") from e


def parse_pairs(given: list[str]) -> dict[str, str]:
    """Options as they stand on the command line. Raises ConfigError."""
    pairs: dict[str, str] = {}
    for each in given:
        key, found, value = each.partition("=")
        if not found or not key:
            raise ConfigError(f"--set {each}: OPTION=VALUE is expected")
        pairs[key] = value
    return pairs


def cluster_pairs(target: Context, options: Options) -> dict[str, str]:
    """The cluster of this command, as options of a pipeline."""
    pairs = {"nameServer": target.namesrv}
    account = credentials_of(target, options)
    if account is not None:
        pairs |= {"accessKey": account.access_key, "secretKey": account.secret_key}
    if target.tls:
        pairs["tls"] = "true"
        if target.tls_ca:
            pairs["tlsTrusted"] = target.tls_ca
    return pairs


@verb(app, "status", reads=True, watches=True, examples=["tianzhou pipeline status --watch"])
async def status(
    session: Session,
    database: Database = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many runs.")] = 20,
) -> Shown:
    """Show the last runs, the newest first."""
    with _extra():
        from tianzhou.spark.pipelines import runner
        from tianzhou.spark.pipelines.common import DATABASE

    found = await asyncio.to_thread(runner.status, database or DATABASE, limit=limit)
    rows = (
        (
            each.pipeline,
            each.state,
            moment(each.started_ms),
            span((each.ended_ms or session.now_ms) - each.started_ms),
            each.row_count,
            each.note,
        )
        for each in found
    )
    shown = table(["!pipeline", "state", "!started", ">took", ">rows", "note"], rows)
    return Shown(
        [asdict(each) for each in found],
        [shown] if found else [],
        notes=[several(len(found), "run")],
    )
