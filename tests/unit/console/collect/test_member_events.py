"""The history of members: found by comparing rounds, written once, across restarts."""

from pathlib import Path

from tianzhou.console.collect import leases, member_events, tables
from tianzhou.console.collect.counting import Ledger
from tianzhou.console.collect.days import days_at, zone_of
from tianzhou.console.collect.member_events import events_between, members_in
from tianzhou.console.collect.recording import Recorder
from tianzhou.console.collect.snapshot import Group, Member, Snapshot

NOW_MS = 1_790_000_000_000


def _member(name: str, address: str = "10.0.0.1:4711", version: str = "V5_5_0") -> Member:
    return Member(client_id=name, address=address, version=version, language="JAVA")


def _snapshot(*members: Member, version: int = 1, is_known: bool = True) -> Snapshot:
    group = Group(
        name="billing", members=members if is_known else None, members_ms=NOW_MS + version
    )
    return Snapshot(cluster="main", version=version, as_of_ms=NOW_MS, groups=(group,))


def _events(before: Snapshot, after: Snapshot) -> list[tuple[str, str]]:
    found = events_between(members_in(before, {}), after)
    return [(each.client_id, each.what) for each in found]


def test_who_comes_leaves_moves_and_is_updated() -> None:
    before = _snapshot(_member("a"), _member("b"), _member("c"), _member("d"))
    after = _snapshot(
        _member("a"), _member("c", address="10.0.0.9:1"), _member("d", version="V5_6_0"),
        _member("e"),
    )  # fmt: skip
    assert _events(before, after) == [
        ("b", "went"), ("c", "address"), ("d", "version"), ("e", "came"),
    ]  # fmt: skip


def test_another_port_is_no_event() -> None:
    after = _snapshot(_member("a", address="10.0.0.1:9999"))
    assert _events(_snapshot(_member("a")), after) == []


def test_what_is_not_known_is_no_event() -> None:
    known, unknown = _snapshot(_member("a")), _snapshot(is_known=False)
    assert _events(unknown, known) == []
    assert _events(known, unknown) == []
    kept = members_in(unknown, members_in(known, {}))
    assert [each.what for each in events_between(kept, _snapshot())] == ["went"]


def test_events_are_written_with_the_rounds_and_survive_a_restart(tmp_path: Path) -> None:
    engine = tables.open_tables(f"sqlite:///{tmp_path / 'console.db'}")
    days = days_at(NOW_MS, zone_of("UTC"))
    for version, members in enumerate([[_member("a")], [_member("b")], [], [_member("b")]], 1):
        # A new recorder each time, as after a restart.
        recorder = Recorder(engine, "main", "here")
        assert leases.acquire(engine, "collect:main", "here")
        written = recorder.write(_snapshot(*members, version=version), Ledger(), days)
        assert not written.problem
    found = [
        (each.client_id, each.what) for each in member_events.newest(engine, "main", "billing")
    ]
    assert found == [("b", "came"), ("b", "went"), ("b", "came"), ("a", "went")]
    with engine.begin() as connection:
        member_events.expire(connection, "main", NOW_MS + member_events.KEPT_MS + 4)
    assert len(member_events.newest(engine, "main", "billing")) == 1
    assert member_events.newest(engine, "other", "billing") == []
    engine.dispose()
