"""What the answers of several replicas say together, and the price of a forced election."""

import pytest
from msgspec.structs import replace

from tianzhou.admin.replication.groups import combine, price_of, responsible
from tianzhou.errors import RequestTimeout, TargetError
from tianzhou.protocol.bodies.ha_group import GroupInfo, GroupReason, GroupReplica, GroupSelf

ADDRESSES = {1: "a:1", 2: "b:1", 3: "c:1"}


def answer(
    own: int, *, master: int | None = 1, revision: int = 10, mode: str = "", end: int = 1000,
    in_sync: tuple[int, ...] = (1, 2, 3), epoch: int = 4, seen_end: int = 900,
) -> GroupInfo:  # fmt: skip
    """Of the replica `own`; it believes that the logs of the others end at `seen_end`."""
    leads = own == master
    replicas = [
        GroupReplica(
            id=each, address=address, is_master=each == master, is_in_sync=each in in_sync,
            is_connected=True if leads and each != own else None,
            end_offset=end if each == own else seen_end,
            behind_bytes=0 if each == own else end - seen_end, epoch=epoch,
        )
        for each, address in ADDRESSES.items()
    ]  # fmt: skip
    return GroupInfo(
        broker_name="g", revision=revision, epoch=epoch, master=master, in_sync=list(in_sync),
        replicas=replicas,
        own=GroupSelf(
            id=own, mode=mode or ("master" if leads else "slave"), end_offset=end, log_epoch=epoch,
            message_count=10,
        ),
    )  # fmt: skip


def test_the_newest_state_and_the_lag_of_the_master_count() -> None:
    old = replace(answer(2, revision=9, in_sync=(1, 2)), epoch=3)
    group = combine({"a:1": answer(1, end=2000, seen_end=1500), "b:1": old})
    assert (group.info.epoch, group.info.in_sync) == (4, [1, 2, 3])
    behind = [each.behind_bytes(group.master) for each in group.members]
    assert behind == [0, 500, 500]
    assert [each.own.mode if each.own else None for each in group.members] == [
        "master", "slave", None
    ]  # fmt: skip
    assert responsible(group).seen.id == 1


def test_a_deposed_master_does_not_count_as_the_master() -> None:
    deposed = answer(1, revision=9, mode="master", end=5000, seen_end=1)
    group = combine({"a:1": deposed, "b:1": answer(2, master=2, revision=11, in_sync=(2, 3))})
    assert group.master is not None
    assert group.master.seen.id == 2
    assert [each.seen.end_offset for each in group.members] == [900, 1000, 900]


def test_alarms_of_all_replicas_are_shown_once() -> None:
    alarm = GroupReason(code="paused", text="p")
    other = GroupReason(code="stopped", text="s")
    group = combine({
        "a:1": replace(answer(1), alarms=[alarm]),
        "b:1": replace(answer(2), alarms=[alarm, other]),
    })  # fmt: skip
    assert group.alarms == (alarm, other)


def test_replicas_without_answer_are_named() -> None:
    group = combine({"b:1": answer(2)}, {"a:1": RequestTimeout("late"), "x:1": RequestTimeout("?")})
    assert group.warnings == ("a:1: late",)
    assert group.member(1).problem == "late"
    assert responsible(group).seen.id == 2
    with pytest.raises(TargetError, match="has no replica 9; there are: 1, 2, 3"):
        group.member(9)


def test_the_price_of_a_forced_election() -> None:
    shown = {"b:1": answer(2, end=1000, seen_end=1600), "c:1": answer(3, end=1400, seen_end=1600)}
    group = combine(shown, {"a:1": RequestTimeout("late")})
    assert group.longest is group.member(3)
    price = price_of(group, 2)
    # Replica 1 has more, as far as the others heard of it: 100 bytes a message.
    assert (price.lost_bytes, price.lost_messages) == (600, 6)
    assert price.longest is group.member(1)
    assert price.unknown == (group.member(1),)


def test_a_longer_log_of_an_older_epoch_is_no_loss() -> None:
    shown = {
        "b:1": answer(2, end=1000, seen_end=10, epoch=5),
        "c:1": answer(3, end=1400, epoch=4, revision=9),
    }
    price = price_of(combine(shown), 2)
    assert (price.lost_bytes, price.longest) == (0, None)


def test_no_election_is_forced_beside_a_living_master_or_without_the_replica() -> None:
    group = combine({"a:1": answer(1), "b:1": answer(2)}, {"c:1": RequestTimeout("late")})
    with pytest.raises(TargetError, match="is the master and answers: use `tianzhou broker switch"):
        price_of(group, 2)
    with pytest.raises(TargetError, match="does not answer, so it cannot be elected: late"):
        price_of(group, 3)


def test_brokers_of_another_group_with_the_same_name_are_an_alarm_and_do_not_count() -> None:
    own = {at: replace(info, group="x") for at, info in
           {"a:1": answer(1), "b:1": answer(2)}.items()}  # fmt: skip
    # Of another etcd, whose revisions are larger.
    stranger = replace(answer(1, revision=99, epoch=7), group="y")
    joining = replace(answer(3, revision=0), group=None)
    answers = {**own, "z:1": stranger, "c:1": joining}
    group = combine(answers)
    assert group.info.epoch == 4
    assert [each.own is not None for each in group.members] == [True, True, True]
    (alarm,) = group.alarms
    assert alarm.code == "two groups"
    assert "another group has the name g, too: z:1 (group y," in alarm.text
    group = combine(answers, address="z:1")
    assert group.info.epoch == 7
    assert "a:1 (group x, etcd cluster ), b:1 (group x," in group.alarms[0].text
