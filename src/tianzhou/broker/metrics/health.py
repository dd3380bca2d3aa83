"""Health pages for load balancers and supervisors: 200 or 503 with the reason, as JSON.

    /master       the master, which accepts messages now and certainly still is the master
    /slave        a slave that follows its master; ?lag=BYTES: at most so far behind
    /in-sync      in the in-sync set, so that it can become the master
    /readiness    one of the first two
    /liveness     event loop and disk do not hang

With automatic failover 200 is never answered from memory alone: a master needs its lease or the
acknowledgements of all that count, a slave its connection, a member the present state.
"""

import json
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qs

from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.replication.failover import Failover
from tianzhou.remoting.http import Page, QueryPages

_LAG_DIGITS_MAX = 18


class Verdict(NamedTuple):
    """Whether a page answers 200, and why, or why not."""

    is_ok: bool
    reason: str


class BadQuery(ValueError):
    """The query of the URL cannot be read; the text says why."""


def health_pages(deps: Deps) -> QueryPages:
    """The pages by path; each gets the query of the URL."""
    return {
        "/master": _page(deps, lambda query: master_verdict(deps)),
        "/slave": _page(deps, lambda query: slave_verdict(deps, lag_of(query))),
        "/in-sync": _page(deps, lambda query: in_sync_verdict(deps)),
        "/readiness": _page(deps, lambda query: readiness_verdict(deps)),
        "/liveness": _page(deps, lambda query: liveness_verdict(deps)),
    }


def _page(deps: Deps, judge: Callable[[str], Verdict]) -> Callable[[str], Page]:
    def answer(query: str) -> Page:
        try:
            verdict = judge(query)
        except BadQuery as e:
            return _json(deps, HTTPStatus.BAD_REQUEST, str(e))
        status = HTTPStatus.OK if verdict.is_ok else HTTPStatus.SERVICE_UNAVAILABLE
        return _json(deps, status, verdict.reason)

    return answer


def _json(deps: Deps, status: HTTPStatus, reason: str) -> Page:
    config, failover = deps.settings.config, deps.failover
    content: dict[str, object] = {
        "status": "ok" if status == HTTPStatus.OK else "unavailable",
        "reason": reason,
        "broker": config.broker_name,
        "id": failover.role.id if failover else config.broker_id,
        "role": failover.role.mode.value if failover else config.broker_role.value,
    }
    if failover is not None and failover.role.state is not None:
        content["epoch"] = failover.role.state.epoch
    return Page(json.dumps(content).encode() + b"\n", "application/json", status)


def lag_of(query: str) -> int | None:
    """The value of ?lag=BYTES; None if it is not given. Raises BadQuery."""
    given = parse_qs(query, keep_blank_values=True)
    unknown = given.keys() - {"lag"}
    values = given.get("lag", [])
    if unknown or len(values) > 1:
        raise BadQuery("the only parameter is lag=BYTES, once")
    if not values:
        return None
    text = values[0]
    if not (text.isascii() and text.isdecimal() and len(text) <= _LAG_DIGITS_MAX):
        raise BadQuery(f"lag={text[:40]!r} is no number of bytes")
    return int(text)


# -- verdicts --------------------------------------------------------------------------------------


def master_verdict(deps: Deps) -> Verdict:
    """Whether messages can be sent here."""
    if deps.settings.config.is_slave:
        return Verdict(False, "this broker is not the master")
    if (refusal := deps.store.refusal) is not None:
        return Verdict(False, f"no messages are accepted: {refusal}")
    failover = deps.failover
    if failover is None:
        return Verdict(True, "this broker is a master")
    if failover.serving.writes is not None:
        return Verdict(False, failover.serving.writes.text)
    if not failover.can_promise:
        return Verdict(False, "its lease is not fresh, and not all in-sync replicas acknowledge")
    return Verdict(True, "this broker is the master")


def slave_verdict(deps: Deps, lag_max: int | None = None) -> Verdict:
    """Whether messages can be read here, at most so many bytes behind."""
    if not deps.settings.config.is_slave:
        return Verdict(False, "this broker is no slave")
    failover = deps.failover
    if failover is not None and failover.serving.reads is not None:
        return Verdict(False, failover.serving.reads.text)
    if failover is not None and failover.role.stopped is not None:
        return Verdict(False, failover.role.stopped.text)
    master = deps.replication_status().master
    if master is None or not master.is_following:
        state = "no master is known" if master is None else master.problem or master.state
        return Verdict(False, f"it does not follow its master: {state}")
    if lag_max is None:
        return Verdict(True, "this broker follows its master")
    behind = master.behind_bytes
    if behind is None:
        return Verdict(False, "how far it is behind is not known yet")
    return Verdict(behind <= lag_max, f"{behind} bytes behind its master")


def in_sync_verdict(deps: Deps) -> Verdict:
    """Whether this replica has every acknowledged message."""
    failover = deps.failover
    if failover is None:
        return Verdict(False, "there is no in-sync set without automatic failover")
    if failover.link.problem is not None:
        return Verdict(False, f"the in-sync set is not known now: {failover.link.problem}")
    state = failover.role.state
    if state is None or failover.role.untrusted is not None:
        return Verdict(False, "the in-sync set is not known")
    if failover.role.id not in state.in_sync:
        members = ", ".join(map(str, state.in_sync)) or "none"
        return Verdict(False, f"it is not in sync; in sync: {members}")
    if failover.is_master:
        return Verdict(failover.can_promise, "this broker is the master")
    return _followed(failover, slave_verdict(deps))


def _followed(failover: Failover, following: Verdict) -> Verdict:
    """A member that is not connected to the master of the state may be behind already."""
    state = failover.role.state
    if following.is_ok and state is not None and failover.role.followed_session != state.epoch:
        return Verdict(False, f"it follows another epoch than {state.epoch}")
    return Verdict(True, "this broker is in sync") if following.is_ok else following


def readiness_verdict(deps: Deps) -> Verdict:
    """Whether clients can use this broker."""
    return slave_verdict(deps) if deps.settings.config.is_slave else master_verdict(deps)


def liveness_verdict(deps: Deps) -> Verdict:
    """Whether the process works; one that does not is to be restarted.

    That this is answered shows that the event loop runs.
    """
    failover = deps.failover
    if failover is not None and not failover.is_healthy():
        return Verdict(False, "an fsync hangs, or the event loop did")
    return Verdict(True, "the process works")
