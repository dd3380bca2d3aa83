"""Copying what brokers lack: all, by pattern, or of one broker; a job."""

from fnmatch import fnmatchcase

import msgspec

from tianzhou.admin.changes import expansion as compared
from tianzhou.console.changes.cluster import alone
from tianzhou.console.changes.jobs import begin
from tianzhou.console.jobs.copy import CopyItem, CopyMissing
from tianzhou.console.text import Text
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.refusals import Invalid
from tianzhou.console.web.route import Done, Plan, PlanRow, Prepared

SHOWN_MAX = 200
KINDS = ("", compared.TOPIC, compared.GROUP)


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """What is copied."""

    broker: str = ""
    """To this broker only."""
    kind: str = ""
    """topic or group; empty: both."""
    pattern: str = "*"
    """A name, or a pattern with * and ?; ordered topics only by their exact name."""


async def copy(ask: Ask, given: Copy) -> Prepared:
    """Create on brokers what they lack of the others of their cluster."""
    if given.kind not in KINDS:
        raise Invalid(Text("A kind is one of: {kinds}.", kinds="topic, group"), "kind")
    state = await compared.expansion(ask.cluster.admin)
    matching = [
        each
        for each in state.missing
        if given.broker in ("", each.target.label)
        and given.kind in ("", each.kind)
        and fnmatchcase(each.name, given.pattern)
    ]
    wanted = [each for each in matching if not each.is_ordered or each.name == given.pattern]
    ordered = len(matching) - len(wanted)
    warnings = [Text("{why}", why=each) for each in state.warnings]
    if ordered:
        warnings.append(
            Text(
                "{n} ordered topic is left out: more queues change the order of its keys. Name it "
                "to copy it.|{n} ordered topics are left out: more queues change the order of "
                "their keys. Name one to copy it.",
                n=ordered,
            )
        )
    if any(each.differs for each in wanted):
        names = sorted({each.name for each in wanted if each.differs})
        warnings.append(
            Text(
                "Brokers have different settings of {names}; those of the first are copied.",
                names=", ".join(names[:10]),
            )
        )
    if len(wanted) > SHOWN_MAX:
        warnings.append(Text("{n} more are copied than are shown.", n=len(wanted) - SHOWN_MAX))
    plan = Plan(
        title=Text("Copy {n} setting|Copy {n} settings", n=len(wanted)),
        rows=tuple(
            PlanRow(
                subject=each.target.label,
                what=Text("Topic") if each.kind == compared.TOPIC else Text("Consumer group"),
                after=f"{each.name} ({each.source.label})",
            )
            for each in wanted[:SHOWN_MAX]
        ),
        warnings=tuple(warnings),
        button=Text("Copy"),
        mark=repr([(each.target.label, each.kind, each.name) for each in wanted]),
    )
    body = CopyMissing(
        items=tuple(CopyItem(each.target.label, each.kind, each.name) for each in wanted)
    )

    async def execute() -> Done:
        if not wanted:
            raise Invalid(Text("There is nothing to copy."), "pattern")
        async with alone(ask, "expansion"):
            title = Text("Copy topics and groups to brokers that lack them")
            return await begin(ask, "copy", given.broker or "*", title, body, len(wanted))

    return Prepared(plan, execute)
