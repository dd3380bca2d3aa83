"""Who must acknowledge, and the confirm offset (R1, R2)."""

from tianzhou.ha.roles.counted_set import CountedSet


def counted(*in_force: int, confirm: int = 0, is_sync_flush: bool = False) -> CountedSet:
    made = CountedSet(1, in_force, confirm=confirm, copies=2, is_sync_flush=is_sync_flush)
    for each in in_force:
        if each != 1:
            made.connected(each)
    return made


def test_the_confirm_offset_is_the_smallest_acknowledged_end_of_the_set() -> None:
    made = counted(1, 2, 3)
    assert not made.own_end(100, 100)
    assert not made.acknowledge(2, 80)
    assert made.acknowledge(3, 50)
    assert made.confirm == 50
    assert made.acknowledge(3, 90)
    assert made.confirm == 80


def test_a_slave_outside_the_set_confirms_nothing() -> None:
    made = counted(1, 2)
    made.connected(3)
    made.own_end(100, 100)
    assert not made.acknowledge(3, 100)
    assert made.confirm == 0
    assert made.acknowledged[3] == 100


def test_the_own_end_counts_when_it_is_flushed_if_flushes_are_synchronous() -> None:
    made = counted(1, 2, is_sync_flush=True)
    made.acknowledge(2, 100)
    assert made.own_end(100, 40)
    assert made.confirm == 40
    assert made.own_end(100, 100)
    assert made.confirm == 100


def test_the_confirm_offset_never_falls() -> None:
    made = counted(1, 2)
    made.own_end(100, 100)
    made.acknowledge(2, 100)
    made.disconnected(2)
    made.connected(2)
    assert made.confirm == 100
    assert not made.acknowledge(2, 50)
    assert made.confirm == 100


def test_a_new_connection_has_acknowledged_nothing() -> None:
    made = counted(1, 2)
    made.acknowledge(2, 100)
    made.connected(2)
    made.own_end(100, 100)
    assert made.confirm == 0


def test_reports_of_a_closed_connection_are_ignored() -> None:
    made = counted(1, 2)
    made.disconnected(2)
    made.own_end(100, 100)
    assert not made.acknowledge(2, 100)
    assert made.confirm == 0


def test_proposed_and_local_members_must_acknowledge_too() -> None:
    for change in (CountedSet.set_proposed, CountedSet.set_local):
        made = counted(1, 2)
        made.connected(3)
        made.own_end(100, 100)
        change(made, (1, 2, 3))
        made.acknowledge(2, 100)
        assert made.confirm == 0
        assert change(made, ())
        assert made.confirm == 100


def test_a_smaller_set_in_force_confirms_what_it_has() -> None:
    made = counted(1, 2, 3)
    made.own_end(100, 100)
    made.acknowledge(2, 70)
    assert made.set_in_force((1, 2))
    assert made.confirm == 70


def test_a_send_is_promised_when_confirmed_and_there_are_enough_copies() -> None:
    made = counted(1, 2)
    made.own_end(100, 100)
    made.acknowledge(2, 60)
    assert made.is_promised(60)
    assert not made.is_promised(61)
    made.set_in_force((1,))
    assert made.confirm == 100
    assert not made.is_promised(60)


def test_a_copy_is_independent() -> None:
    made = counted(1, 2)
    other = made.copy()
    other.own_end(10, 10)
    other.acknowledge(2, 10)
    assert (made.confirm, made.acknowledged) == (0, {2: 0})
    assert (other.confirm, other.acknowledged) == (10, {2: 10})
