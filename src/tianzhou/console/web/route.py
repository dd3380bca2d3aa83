"""What a line of the route table declares: a page with its changes, or a plain answer."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, get_type_hints

import msgspec
from starlette.responses import Response

from tianzhou.console.text import Text


class Who(IntEnum):
    """Who may ask for a page or a change."""

    STRANGER = 0
    READER = 1
    ADMINISTRATOR = 2


# -- changes ---------------------------------------------------------------------------------------


class PlanRow(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a change would change."""

    subject: str
    """Where: a broker, a person, a queue."""
    what: Text
    before: str | None = None
    """None: it does not exist yet."""
    after: str | None = None
    """None: it will not exist any more."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a change would do: shown before it is done."""

    title: Text
    rows: tuple[PlanRow, ...] = ()
    warnings: tuple[Text, ...] = ()
    confirm: str = ""
    """The name to type; empty: a button is enough."""
    is_dangerous: bool = False
    """Whether something is lost."""
    button: Text = msgspec.field(default_factory=lambda: Text("Confirm"))
    mark: str = ""
    """What must be equal when the plan is confirmed; empty: everything that it shows. For plans
    with figures that move all the time, such as offsets."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What a change has done, for the audit log and the answer."""

    subject: str
    notice: Text
    """One sentence for the person."""
    location: str = ""
    """The address to go on at, below the root; empty: the one of the change."""
    before: Any = None
    after: Any = None
    """Structs or mappings for the audit log; fields with secrets are masked there."""
    cluster: str = ""
    result: Any = None
    """More for the answer: a struct, such as a new token, or the id of a job."""
    template: str = ""
    """Shows `result` instead of going on: for what is shown once only."""
    is_partial: bool = False
    """Whether it was done in part only, such as on two of three brokers; `notice` says so."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked change that has not been done yet."""

    plan: Plan
    execute: Callable[[], Awaitable[Done]]


Prepare = Callable[[Any, Any], Awaitable[Prepared]]
"""Checks what is given and says what it would do. Raises Refusal; changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A verb of a page: POST to its address with `_do=VERB`."""

    verb: str
    prepare: Prepare
    given: type[msgspec.Struct]
    """The fields; from the annotation of `prepare`."""
    who: Who = Who.ADMINISTRATOR
    scope: str = "change"
    """The scope that a token needs; empty: never by token."""
    asks_password: bool = False
    """Whether the password must have been entered a short while ago."""
    has_plan: bool = True
    """Whether the form asks for the plan first; False for what is undone as easily."""


def change(
    verb: str, prepare: Prepare, *, who: Who = Who.ADMINISTRATOR, scope: str = "change",
    asks_password: bool = False, has_plan: bool = True,
) -> Change:  # fmt: skip
    """A change whose fields are the second parameter of `prepare`."""
    hints = get_type_hints(prepare)
    hints.pop("return", None)
    *_, given = hints.values()
    return Change(
        verb=verb, prepare=prepare, given=given, who=who, scope=scope,
        asks_password=asks_password, has_plan=has_plan,
    )  # fmt: skip


# -- routes ----------------------------------------------------------------------------------------

View = Callable[[Any], Awaitable[msgspec.Struct]]
Answer = Callable[[Any], Awaitable[Response]]
Version = Callable[[Any], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One line of the route table."""

    path: str
    """With {names}; a name is one segment."""
    view: View | None = None
    answer: Answer | None = None
    returns: Any = None
    """The struct of the view."""
    template: str = ""
    title: Text
    who: Who = Who.READER
    scope: str = "read"
    methods: tuple[str, ...] = ("GET", "HEAD")
    """Of an answer; a page with changes also has POST."""
    changes: dict[str, Change] = field(default_factory=dict[str, Change])
    is_live: bool = False
    """Whether an open page asks again every few seconds."""
    version: Version | None = None
    """What the page is made of, such as the version of a snapshot: as long as it is equal, the
    rendered page is used again, for everyone with the same rights and language."""
    rows: str = ""
    """The field of the struct that `.csv` gives."""
    pattern: re.Pattern[str] = field(default=re.compile(""), compare=False)

    def matched(self, path: str) -> dict[str, str] | None:
        """The names in a path; None if it is another route's."""
        found = self.pattern.fullmatch(path)
        return found.groupdict() if found is not None else None


def page(
    path: str, view: View, title: str, *changes: Change, who: Who = Who.READER,
    scope: str = "read", is_live: bool = False, version: Version | None = None, rows: str = "",
) -> Route:  # fmt: skip
    """A page, served as HTML, `.json` and, with `rows`, `.csv`.

    Its template has the name of the view: `async def topics` is shown by `topics.html`.
    """
    name = getattr(view, "__name__", "")
    return Route(
        path=path, view=view, returns=get_type_hints(view)["return"],
        template=f"{name}.html", title=Text(title), who=who, scope=scope,
        changes={each.verb: each for each in changes}, is_live=is_live, version=version, rows=rows,
        pattern=_pattern(path),
    )  # fmt: skip


def answer(
    path: str, function: Answer, title: str, *, who: Who = Who.READER, scope: str = "read",
    methods: tuple[str, ...] = ("GET", "HEAD"),
) -> Route:  # fmt: skip
    """An address with a response of its own: no page, no JSON."""
    return Route(
        path=path, answer=function, title=Text(title), who=who, scope=scope, methods=methods,
        pattern=_pattern(path),
    )  # fmt: skip


def _pattern(path: str) -> re.Pattern[str]:
    parts = re.split(r"(\{\w+(?::path)?\})", path)
    text = ""
    for part in parts:
        if not part.startswith("{"):
            text += re.escape(part)
        elif part.endswith(":path}"):
            text += f"(?P<{part[1:-6]}>.+)"
        else:
            text += f"(?P<{part[1:-1]}>[^/]+)"
    return re.compile(text)
