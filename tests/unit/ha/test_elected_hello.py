"""The hello where masters are elected: refusals, cuts, and epochs that end a mastership."""

from dataclasses import replace

import pytest

from tianzhou.errors import ReplicationError
from tianzhou.ha import elected_hello
from tianzhou.ha.elected_hello import Session, Verdict, cut_point, judge, problem_with
from tianzhou.ha.epochs import LISTED_MAX, Epoch
from tianzhou.ha.hello import (
    Broker,
    LogState,
    Membership,
    Offer,
    make_request,
    make_response,
    read_request,
    read_response,
)
from tianzhou.ha.log_tail import Tail
from tianzhou.protocol import headers
from tianzhou.protocol.command import Command

MASTER = Broker(cluster="c", name="broker-a", id=2, store_id="0" * 32)
SLAVE = Broker(cluster="c", name="broker-a", id=1, store_id="1" * 32)
MEMBER = Membership(group="g", incarnation=91, followed_epoch=2)
LOG = LogState(
    first_offset=4096, end_offset=20_000, file_bytes=4096, epochs=(Epoch(1, 0), Epoch(3, 9000))
)
OWN = LogState(first_offset=4096, end_offset=8000, file_bytes=4096, epochs=(Epoch(1, 0),))
EMPTY = LogState(first_offset=0, end_offset=0, file_bytes=4096)
DIVERGED = replace(OWN, end_offset=9500, epochs=(Epoch(1, 0), Epoch(2, 9100)))
TOKEN = bytes(range(16))


def verdict(
    own: LogState = OWN, member: Membership | None = MEMBER, broker: Broker = SLAVE, known: int = 91
) -> Verdict:
    request = read_request(make_request(broker, own, "1.0", member))
    return judge(request, MASTER, Session("g", 3), LOG, known, lambda at, size: None)


def offer(log: LogState = LOG, group: str | None = "g", token: bytes | None = TOKEN) -> Offer:
    header = make_response(log, token=token, ha_port=1, group=group, confirm_offset=7)
    return read_response(Command(code=0, ext_fields=headers.encode(header)))


def test_a_log_that_is_the_beginning_of_the_masters_is_accepted() -> None:
    assert verdict() == Verdict()
    assert verdict(EMPTY) == Verdict()
    assert problem_with(offer(), MEMBER, OWN) is None
    assert problem_with(offer(), MEMBER, EMPTY) is None
    assert cut_point(offer(), OWN) == OWN.end_offset
    assert offer().confirm_offset == 7


def test_a_log_that_differs_is_cut_at_the_consistent_point() -> None:
    assert verdict(DIVERGED) == Verdict(must_cut=True)
    answer = offer(token=None)
    assert answer.token is None
    assert problem_with(answer, MEMBER, DIVERGED) is None
    assert cut_point(answer, DIVERGED) == 9000


def test_a_log_that_is_longer_than_the_masters_is_cut() -> None:
    ahead = replace(OWN, end_offset=20_100, epochs=LOG.epochs)
    assert verdict(ahead).must_cut
    assert cut_point(offer(), ahead) == 20_000


def test_a_slave_of_a_newer_epoch_ends_the_mastership() -> None:
    newer = verdict(member=replace(MEMBER, followed_epoch=4))
    assert newer.newer_epoch == 4
    assert newer.refusal is not None
    assert verdict(replace(OWN, epochs=(Epoch(5, 0),))).newer_epoch == 5
    assert verdict(member=replace(MEMBER, followed_epoch=3)).newer_epoch == 0


@pytest.mark.parametrize("epoch", [1_000_004, 2**31, 2**62])
def test_an_epoch_that_cannot_be_ends_no_mastership(epoch: int) -> None:
    """Epochs have 32 bits: the next election must still find a larger one."""
    with pytest.raises(ReplicationError, match=f"knows epoch {epoch}"):
        verdict(member=replace(MEMBER, followed_epoch=epoch))


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (verdict(member=None), "of group none, the master of group g"),
        (verdict(member=replace(MEMBER, group="h")), "of group h, the master of group g"),
        # The group is compared before anything else: its epoch is that of other histories.
        (verdict(member=Membership(group="h", incarnation=91, followed_epoch=9)), "group h"),
        (verdict(broker=replace(SLAVE, name="b")), "broker-a of cluster c"),
        (verdict(broker=replace(SLAVE, id=2)), "its store is a copy"),
        (verdict(known=92), "incarnation 91, a newer process of id 1 has joined"),
        (verdict(replace(OWN, file_bytes=8192)), "mappedFileSizeCommitLog"),
        (verdict(replace(OWN, first_offset=0, end_offset=4000)), "have expired"),
    ],
)
def test_a_slave_that_cannot_follow_is_refused(refused: Verdict, words: str) -> None:
    assert words in (refused.refusal or "")
    assert refused.newer_epoch == 0
    assert not refused.must_cut


def test_equal_epochs_with_other_bytes_at_the_end_are_refused() -> None:
    own = replace(OWN, tail=Tail(100, 5))
    request = read_request(make_request(SLAVE, own, "1.0", MEMBER))
    seen = judge(request, MASTER, Session("g", 3), LOG, 91, lambda at, size: 6)
    assert "are not those that the master has" in (seen.refusal or "")


@pytest.mark.parametrize(
    ("answer", "own", "member", "words"),
    [
        (offer(group=None), OWN, MEMBER, "the master of group none"),
        (offer(), OWN, replace(MEMBER, followed_epoch=4), "of epoch 3, .* followed epoch 4"),
        (offer(), replace(OWN, epochs=(Epoch(7, 0),)), MEMBER, "of epoch 3, .* epoch 7"),
        (offer(), replace(OWN, file_bytes=8192), MEMBER, "mappedFileSizeCommitLog"),
        (offer(), replace(OWN, first_offset=0, end_offset=4000), MEMBER, "have expired"),
        (offer(), replace(DIVERGED, epochs=(Epoch(2, 100),)), MEMBER, "ends at 0, .* at 4096"),
    ],
)
def test_a_master_that_must_not_be_followed(
    answer: Offer, own: LogState, member: Membership, words: str
) -> None:
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(problem_with(answer, member, own))


def test_a_log_that_differs_before_the_listed_epochs_is_not_cut() -> None:
    listed = tuple(Epoch(number, number * 10) for number in range(10, 10 + LISTED_MAX + 5))
    answer = offer(replace(LOG, first_offset=0, epochs=listed))
    own = replace(OWN, first_offset=0, epochs=(Epoch(1, 0), Epoch(2, 50)))
    assert "lists its newest" in (problem_with(answer, MEMBER, own) or "")
    assert elected_hello.cut_point(answer, own) == 0
