"""Changes of dead letters: resend and export, as jobs with a result for each letter."""

import re

import msgspec

from tianzhou.admin.message_search import ranges as ranges_of
from tianzhou.console.changes.jobs import begin
from tianzhou.console.changes.messages import check_sendable
from tianzhou.console.jobs.export import FORMATS, LETTERS_MAX, Export
from tianzhou.console.jobs.ranges import LetterRange, as_ranges
from tianzhou.console.jobs.resend import Resend, goal_of
from tianzhou.console.messages.letters import topic_of
from tianzhou.console.messages.searching import time_of
from tianzhou.console.text import Text
from tianzhou.console.views.letters import group_in
from tianzhou.console.views.messages import bounded, is_offset_id
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.refusals import Conflict, Invalid, NotFound
from tianzhou.console.web.route import Done, Plan, PlanRow, Prepared
from tianzhou.errors import TargetError, TianzhouError

CHOSEN_MAX = 500
"""Letters that are chosen one by one; more are chosen by time."""
_LISTED = 20
_CLOCK_SKEW_MS = 60_000


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which letters: chosen ones, or those of a time."""

    ids: list[str] = []
    """Offset ids, also several in one text, separated by spaces; empty: by time."""
    begin: str = ""
    end: str = ""
    """As in the address of the page; both empty: all letters."""


class ResendLetters(Choice, frozen=True, kw_only=True):
    """Letters to resend."""

    to: str = "group"
    """group, or topic."""
    topic: str = ""
    """With to=topic; every group of the topic receives the letters."""


class ExportLetters(msgspec.Struct, frozen=True, kw_only=True):
    """Letters to export."""

    format: str = "jsonl"
    begin: str = ""
    end: str = ""


async def resend(ask: Ask, given: ResendLetters) -> Prepared:
    """Resend dead letters to their group, or to a topic."""
    group = group_in(ask)
    goal = _goal(ask, given)
    ids = _ids(given.ids)
    ranges: tuple[LetterRange, ...] = ()
    begin_ms, end_ms = _times(ask, given.begin, given.end)
    if not ids:
        ranges = await _ranges(ask, group, begin_ms, end_ms)
    body = Resend(group=group, topic=goal, ids=ids, ranges=ranges, begin_ms=begin_ms, end_ms=end_ms)
    await _check_goal(ask, body)
    count = len(ids) or sum(each.end - each.begin for each in ranges)
    if not count:
        raise Invalid(Text("No dead letters are stored in this time."), "begin")
    shown = [
        PlanRow(subject=goal_of(body), what=Text("New message"), after=each)
        for each in ids[:_LISTED]
    ]
    if count > len(shown):
        rest = f"{count - len(shown):,}"
        shown.append(PlanRow(subject=goal_of(body), what=Text("New messages"), after=rest))
    warnings = [Text("The dead-letter queue keeps its letters: resending twice delivers twice.")]
    if goal:
        warnings.append(Text("Every group of {topic} receives them, not only {group}.",
                             topic=goal, group=group))  # fmt: skip
    plan = Plan(
        title=Text("Resend {n} dead letter of {group}|Resend {n} dead letters of {group}",
                   n=count, group=group),
        rows=tuple(shown), warnings=tuple(warnings), button=Text("Resend"),
        confirm=group if count > CHOSEN_MAX else "",
    )  # fmt: skip
    title = Text("Resend dead letters of {group} to {goal}", group=group, goal=goal_of(body))

    async def execute() -> Done:
        return await begin(ask, "resend", group, title, body, count)

    return Prepared(plan, execute)


async def export(ask: Ask, given: ExportLetters) -> Prepared:
    """Export dead letters as a file."""
    group = group_in(ask)
    if given.format not in FORMATS:
        raise Invalid(Text("A format is one of: {names}.", names=", ".join(FORMATS)), "format")
    begin_ms, end_ms = _times(ask, given.begin, given.end)
    ranges = await _ranges(ask, group, begin_ms, end_ms)
    count = sum(each.end - each.begin for each in ranges)
    if not count:
        raise Invalid(Text("No dead letters are stored in this time."), "begin")
    warnings: tuple[Text, ...] = ()
    if count > LETTERS_MAX:
        warnings = (Text("The export ends after {n} letters.", n=LETTERS_MAX),)
    plan = Plan(
        title=Text("Export {n} dead letter of {group}|Export {n} dead letters of {group}",
                   n=count, group=group),
        rows=(PlanRow(subject=group, what=Text("File"), after=FORMATS[given.format]),),
        warnings=warnings, button=Text("Export"),
    )  # fmt: skip
    body = Export(group=group, format=given.format, ranges=ranges, begin_ms=begin_ms, end_ms=end_ms)
    title = Text("Export dead letters of {group} as {format}",
                 group=group, format=FORMATS[given.format])  # fmt: skip
    file = f"dead-letters-{re.sub(r'[^0-9A-Za-z_-]', '_', group)[:100]}.{given.format}"

    async def execute() -> Done:
        return await begin(
            ask, "export", group, title, body, min(count, LETTERS_MAX), output_name=file
        )

    return Prepared(plan, execute)


# -- what is chosen --------------------------------------------------------------------------------


def _ids(given: list[str]) -> tuple[str, ...]:
    ids = tuple(dict.fromkeys(one for each in given for one in each.split()))
    if len(ids) > CHOSEN_MAX:
        text = Text("At most {n} letters are chosen one by one; choose more by time.",
                    n=CHOSEN_MAX)  # fmt: skip
        raise Invalid(text, "ids")
    for each in ids:
        if not is_offset_id(each):
            raise Invalid(Text("{id} is not the id of a stored message.", id=each[:64]), "ids")
    return ids


def _goal(ask: Ask, given: ResendLetters) -> str:
    """The topic to resend to; empty: the group. Raises Invalid."""
    if given.to == "group":
        return ""
    topic = given.topic.strip()
    if given.to != "topic" or not topic:
        raise Invalid(Text("Name the topic to resend to."), "topic")
    if not ask.scope.sees(topic):
        raise NotFound(Text("There is no topic {name}.", name=topic[:80]))
    check_sendable(topic)
    if topic == topic_of(group_in(ask)):
        raise Invalid(Text("Letters are not resent to the dead-letter queue itself."), "topic")
    return topic


async def _check_goal(ask: Ask, body: Resend) -> None:
    """Raises Conflict if nothing can be sent there."""
    try:
        await bounded(ask.cluster.admin.messages.write_queues(goal_of(body)))
    except TianzhouError as e:
        raise Conflict(Text("Nothing can be sent to {topic}: {why}",
                            topic=goal_of(body), why=str(e))) from e  # fmt: skip


def _times(ask: Ask, begin: str, end: str) -> tuple[int, int]:
    begin_ms, end_ms = time_of(begin, ask.zone, "begin"), time_of(end, ask.zone, "end")
    if end_ms is None:
        end_ms = ask.now_ms + _CLOCK_SKEW_MS
    if (begin_ms or 0) > end_ms:
        raise Invalid(Text("The time ends before it begins."), "end")
    return begin_ms or 0, end_ms


async def _ranges(ask: Ask, group: str, begin_ms: int, end_ms: int) -> tuple[LetterRange, ...]:
    """The letters of a time, as they are now. Raises Conflict if a broker does not answer."""
    admin, topic = ask.cluster.admin, topic_of(group)
    try:
        queues = await bounded(admin.messages.read_queues(topic))
    except TargetError as e:
        raise NotFound(Text("The group {name} has no dead letters.", name=group)) from e
    found, failures = await ranges_of(admin, queues, begin_ms, end_ms)
    if failures:
        reasons = "; ".join(f"{name}: {why}" for name, why in failures.items())
        raise Conflict(
            Text("Letters are chosen by time only while all brokers answer. {why}", why=reasons)
        )
    return as_ranges(found)
