"""Changes of faults while a cluster is watched."""

from tianzhou.admin.doctor.changes import CAME, GONE, WATCH, Change, changes, with_unseen
from tianzhou.admin.doctor.findings import Finding, Level

DISK = Finding(Level.WARNING, "disks", "a", "disk is 76% full", "make room")
CLOCK = Finding(Level.ERROR, "clocks", "a", "clock is 9 s behind", "keep time")
FINE = Finding(Level.OK, "settings", "a", "fit for production")


def test_new_faults_are_sorted_by_level_without_ok() -> None:
    assert changes([], [FINE, DISK, CLOCK]) == [Change(CAME, CLOCK), Change(CAME, DISK)]


def test_same_fault_with_other_figures_is_no_change() -> None:
    fuller = Finding(Level.WARNING, "disks", "a", "disk is 78% full", "make room")
    assert changes([DISK], [fuller]) == []


def test_higher_level_is_a_change() -> None:
    worse = Finding(Level.ERROR, "disks", "a", "disk is 86% full", "make room")
    assert changes([DISK], [worse]) == [Change(CAME, worse), Change(GONE, DISK)]


def test_solved_fault_is_reported_once() -> None:
    assert changes([DISK, FINE], [FINE]) == [Change(GONE, DISK)]
    assert changes([FINE], [FINE]) == []


def test_faults_of_one_subject_differ_by_advice() -> None:
    topics = Finding(Level.WARNING, "settings", "a", "makes topics", "set autoCreateTopicEnable")
    groups = Finding(Level.WARNING, "settings", "a", "makes groups", "set autoCreateGroup")
    assert changes([topics, groups], [groups]) == [Change(GONE, topics)]


MISSING = Finding(Level.ERROR, "brokers", "a 1.1.1.1:1", "is not registered any more", "start it")
SILENT = Finding(Level.ERROR, WATCH, "1.1.1.1:9876", "no connection", "it is tried again")


def test_faults_stay_while_a_server_is_down() -> None:
    assert changes([DISK, CLOCK], with_unseen([DISK, CLOCK], [FINE, MISSING])) == [
        Change(CAME, MISSING)
    ]
    assert changes([DISK, MISSING], with_unseen([DISK, MISSING], [SILENT])) == [
        Change(CAME, SILENT)
    ]


def test_solved_faults_are_reported_when_all_servers_respond() -> None:
    kept = with_unseen([DISK], [FINE, MISSING])
    assert changes(kept, with_unseen(kept, [FINE])) == [Change(GONE, MISSING), Change(GONE, DISK)]


def test_returned_broker_is_reported_while_another_is_down() -> None:
    other = Finding(Level.ERROR, "brokers", "b 1.1.1.1:2", "is not registered any more", "start")
    assert changes([MISSING, other], with_unseen([MISSING, other], [FINE, other])) == [
        Change(GONE, MISSING)
    ]
