"""What changes of a cluster share: one at a time for each thing, and results by broker.

A change on several brokers may succeed on some only. Nothing is undone then: the answer names what
each broker said, the audit row has the result "partial", and the same change can be made again.
"""

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar
from weakref import WeakValueDictionary

import msgspec

from tianzhou.admin.fanout import BrokerRef, Gathered
from tianzhou.console.text import Text
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.refusals import Conflict, Invalid
from tianzhou.console.web.route import Done
from tianzhou.errors import TargetError, TianzhouError

T = TypeVar("T")

_locks: WeakValueDictionary[tuple[int, str, str], asyncio.Lock] = WeakValueDictionary()


class BrokerResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a change at one broker or nameserver."""

    where: str
    is_ok: bool
    detail: str = ""
    """What it said."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a change that was made on several servers."""

    title: Text
    notice: Text
    location: str
    is_complete: bool
    results: tuple[BrokerResult, ...]


class Nothing(msgspec.Struct, frozen=True, kw_only=True):
    """A change without fields."""


@asynccontextmanager
async def alone(ask: Ask, name: str) -> AsyncGenerator[None]:
    """No other request of this console changes the same thing of the cluster meanwhile."""
    key = (id(ask.console), ask.cluster.name, name)
    lock = _locks.get(key)
    if lock is None:
        lock = _locks[key] = asyncio.Lock()
    try:
        async with lock:
            yield
    finally:
        # Pages do not show what was answered before the change.
        ask.console.answers.forget(ask.cluster.name)


def check_unchanged(planned: object, now: object) -> None:
    """Raises Conflict if the cluster is not what the plan was made from."""
    if planned != now:
        raise Conflict(Text("It was changed in the meantime. Nothing was done: make a new plan."))


@contextmanager
def as_invalid(field: str = "") -> Generator[None]:
    """A value that `admin` refuses is an error of the form, not of the cluster."""
    try:
        yield
    except TargetError as e:
        raise Invalid(Text("{why}", why=str(e)), field) from e


def below_root(ask: Ask, url: str) -> str:
    """An address without the path of the reverse proxy."""
    return url.removeprefix(ask.console.settings.root_path)


def chosen(brokers: Iterable[BrokerRef], on: str) -> list[BrokerRef]:
    """The brokers of a name or of a RocketMQ cluster; all if `on` is empty. Raises Invalid."""
    listed = sorted(brokers)
    matching = [each for each in listed if on in ("", each.name, each.cluster)]
    if not matching:
        raise Invalid(Text("There is no broker or cluster {name} that answers.", name=on), "on")
    return matching


def answers(gathered: Gathered[T]) -> dict[BrokerRef, T]:
    """The answers of brokers. Raises the first failure if there is none at all."""
    if gathered.failures and not gathered.responses:
        raise next(iter(gathered.failures.values()))
    return gathered.responses


def silent_warnings(failures: Mapping[BrokerRef, TianzhouError]) -> list[Text]:
    """One warning for each broker whose state is not known: it is not changed."""
    return [
        Text("{broker} does not answer and will not be changed: {why}", broker=at.label, why=str(e))
        for at, e in failures.items()
    ]


def done_on(
    title: Text,
    subject: str,
    gathered: Gathered[T],
    *,
    location: str,
    before: object,
    after: object,
    notice: Text,
    nameservers: Mapping[str, TianzhouError] | None = None,
) -> Done:
    """The result of a change on several brokers. Raises the first failure if all have failed.

    `nameservers` are failures by address.
    """
    answers(gathered)
    results = [
        *(BrokerResult(where=at.label, is_ok=True) for at in sorted(gathered.responses)),
        *(
            BrokerResult(where=at.label, is_ok=False, detail=str(e) or type(e).__name__)
            for at, e in sorted(gathered.failures.items(), key=lambda pair: pair[0])
        ),
        *(
            BrokerResult(where=address, is_ok=False, detail=str(e) or type(e).__name__)
            for address, e in (nameservers or {}).items()
        ),
    ]
    return done_with(
        title, subject, results, location=location, before=before, after=after, notice=notice
    )


def done_with(
    title: Text,
    subject: str,
    results: Iterable[BrokerResult],
    *,
    location: str,
    before: object,
    after: object,
    notice: Text,
) -> Done:
    """The same from results; some may have failed."""
    listed = tuple(results)
    failed = [each for each in listed if not each.is_ok]
    if failed:
        notice = Text(
            "Done on {done} of {all}. Not done on {names}: {why}",
            done=len(listed) - len(failed),
            all=len(listed),
            names=", ".join(each.where for each in failed),
            why=failed[0].detail,
        )
    outcome = Outcome(
        title=title, notice=notice, location=location, is_complete=not failed, results=listed
    )
    return Done(
        subject=subject,
        notice=notice,
        location=location,
        before=before,
        after={"changed": after, "results": outcome.results} if failed else after,
        result=outcome,
        template="outcome.html" if failed else "",
        is_partial=bool(failed),
    )
