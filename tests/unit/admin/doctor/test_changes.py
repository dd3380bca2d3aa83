"""Changes of faults while a cluster is watched."""

from tianzhou.admin.doctor.changes import CAME, GONE, WATCH, Change, changes, with_unseen
from tianzhou.admin.doctor.findings import Finding, Level

DISK = Finding(Level.WARNING, "disks", "a", "disk is 76% full", "make room")
CLOCK = Finding(Level.ERROR, "clocks", "a", "clock is 9 s behind", "keep time")
FINE = Finding(Level.OK, "settings", "a", "fit for production")


def test_what_came_is_told_worst_first_and_what_is_fine_is_not() -> None:
    assert changes([], [FINE, DISK, CLOCK]) == [Change(CAME, CLOCK), Change(CAME, DISK)]


def test_a_fault_that_stays_is_no_news_even_if_its_figure_moves() -> None:
    fuller = Finding(Level.WARNING, "disks", "a", "disk is 78% full", "make room")
    assert changes([DISK], [fuller]) == []


def test_a_fault_that_gets_worse_is_news() -> None:
    worse = Finding(Level.ERROR, "disks", "a", "disk is 86% full", "make room")
    assert changes([DISK], [worse]) == [Change(CAME, worse), Change(GONE, DISK)]


def test_what_is_gone_is_told_once() -> None:
    assert changes([DISK, FINE], [FINE]) == [Change(GONE, DISK)]
    assert changes([FINE], [FINE]) == []


def test_two_faults_of_one_subject_are_two() -> None:
    topics = Finding(Level.WARNING, "settings", "a", "makes topics", "set autoCreateTopicEnable")
    groups = Finding(Level.WARNING, "settings", "a", "makes groups", "set autoCreateGroup")
    assert changes([topics, groups], [groups]) == [Change(GONE, topics)]


MISSING = Finding(Level.ERROR, "brokers", "a 1.1.1.1:1", "is not registered any more", "start it")
SILENT = Finding(Level.ERROR, WATCH, "1.1.1.1:9876", "no connection", "it is tried again")


def test_a_server_that_is_away_makes_nothing_better() -> None:
    assert changes([DISK, CLOCK], with_unseen([DISK, CLOCK], [FINE, MISSING])) == [
        Change(CAME, MISSING)
    ]
    assert changes([DISK, MISSING], with_unseen([DISK, MISSING], [SILENT])) == [
        Change(CAME, SILENT)
    ]


def test_what_is_better_is_told_when_all_servers_are_back() -> None:
    kept = with_unseen([DISK], [FINE, MISSING])
    assert changes(kept, with_unseen(kept, [FINE])) == [Change(GONE, MISSING), Change(GONE, DISK)]


def test_a_broker_that_is_back_is_told_while_another_is_away() -> None:
    other = Finding(Level.ERROR, "brokers", "b 1.1.1.1:2", "is not registered any more", "start")
    assert changes([MISSING, other], with_unseen([MISSING, other], [FINE, other])) == [
        Change(GONE, MISSING)
    ]
