"""One connection on the master's side: its reports, its frames, its times."""

from collections.abc import Callable

import pytest
from tests.support.ha import GivenHello, hello

from tianzhou.ha.frames import (
    CHANGES_BYTES_MAX,
    CHANGES_STATE,
    DEFAULT_HEAD,
    HANDOVER_STATE,
    HEAD,
    TRANSFER_STATE,
    encode_default_report,
    encode_opening,
    encode_report,
)
from tianzhou.ha.master_side import (
    EpochRange,
    Frame,
    LogBounds,
    MasterSide,
    Rules,
    SlaveRefused,
    SlaveState,
)
from tianzhou.limits import HA_CHANGES_MAX

TOKEN = b"0123456789abcdef"
LOG = LogBounds(first=1000, end=3500, file_bytes=1000)
RULES = Rules(
    heartbeat_ms=5000, own_heartbeat_ms=500, silence_ms=20_000, first_report_ms=20_000,
    own_first_report_ms=5000, batch_bytes=300, own_batch_bytes=700,
)  # fmt: skip
MUCH = 10**9


def default_side(first_report: int | None = None, log: LogBounds = LOG) -> MasterSide:
    side = MasterSide("10.0.0.1", RULES, 0, redeem=lambda token: None)
    if first_report is not None:
        side.receive(encode_default_report(first_report), log, 0)
    return side


def own_side(
    first_report: int | None = None,
    given: GivenHello | None = None,
    epochs: tuple[EpochRange, ...] = (EpochRange(1, 0),),
) -> MasterSide:
    slave = given or hello(3)
    side = MasterSide(
        "10.0.0.1", RULES, 0, redeem=lambda token: slave if token == TOKEN else None,
        epoch_at=lambda at: max(each for each in epochs if each.start <= at),
        confirm_offset=lambda: 77,
    )  # fmt: skip
    side.receive(encode_opening(TOKEN), LOG, 0)
    if first_report is not None:
        side.receive(encode_report(first_report), LOG, 0)
    return side


def send_all(side: MasterSide, log: LogBounds = LOG, now_ms: int = 0) -> list[Frame]:
    """The frames up to the end of the log, each accepted as a whole."""
    frames: list[Frame] = []
    while (frame := side.next_frame(log, now_ms, MUCH)) is not None:
        side.sent(len(frame.head) + frame.body_bytes, now_ms)
        frames.append(frame)
    return frames


def ranges(frames: list[Frame]) -> list[tuple[int, int]]:
    return [(each.log_offset, each.body_bytes) for each in frames]


# -- the first report ------------------------------------------------------------------------------


def test_nothing_is_sent_before_the_first_report() -> None:
    for side in (default_side(), own_side()):
        assert side.next_frame(LOG, 10_000, MUCH) is None
        assert side.state(LOG) is SlaveState.WAITING


def test_the_first_report_chooses_the_start_and_acknowledges_nothing() -> None:
    side = default_side(3400)
    assert (side.reported, side.acknowledged) == (3400, 0)
    assert side.state(LOG) is SlaveState.CATCHING_UP
    assert ranges(send_all(side)) == [(3400, 100)]
    assert side.state(LOG) is SlaveState.IN_STEP


def test_a_default_slave_without_a_log_gets_the_last_file() -> None:
    side = default_side(0)
    assert ranges(send_all(side)) == [(3000, 300), (3300, 200)]
    assert (side.reported, side.acknowledged) == (0, 0)


def test_a_default_slave_gets_only_what_is_confirmed() -> None:
    """It cannot take anything back; a slave of ours can, and has to have it to confirm it."""
    log = LOG._replace(confirmed=3450)
    side, own = default_side(3400, log), own_side(3400)
    assert [(each.log_offset, each.body_bytes) for each in send_all(side, log)] == [(3400, 50)]
    assert [(each.log_offset, each.body_bytes) for each in send_all(own, log)] == [(3400, 100)]
    assert side.state(log) is SlaveState.IN_STEP
    assert not side.has_more(log)
    assert [each.body_bytes for each in send_all(side, LOG)] == [50]
    empty = default_side(0, LOG._replace(confirmed=2100))
    assert empty.next_log_offset == 2000, "the last file with something confirmed"


def test_a_default_slave_without_a_log_begins_at_the_end_if_that_is_where_a_file_begins() -> None:
    side = default_side(0, LOG._replace(end=3000))
    assert send_all(side, LOG._replace(end=3000)) == []
    assert ranges(send_all(side, LOG._replace(end=3010))) == [(3000, 10)]


def test_a_slave_of_ours_without_a_log_gets_it_from_the_oldest_file_on() -> None:
    side = own_side(0)
    assert ranges(send_all(side))[0] == (1000, 700)
    assert side.sent_log_offset == 3500


def test_the_first_report_of_ours_acknowledges_if_it_does_not_speak_of_the_disk() -> None:
    assert own_side(3400).acknowledged == 3400
    assert own_side(3400, hello(3, is_flushed=True)).acknowledged == 0


def test_a_slave_of_ours_that_reports_more_than_in_its_hello_is_refused() -> None:
    with pytest.raises(SlaveRefused, match="it reported 3401, and 3400 in its hello"):
        own_side(3401, hello(3, 3400))


@pytest.mark.parametrize("make", [default_side, own_side])
def test_a_slave_ahead_of_its_master_is_refused_as_a_slave(
    make: Callable[[int], MasterSide],
) -> None:
    with pytest.raises(SlaveRefused, match="3501, after the end of this one, 3500") as refused:
        make(3501)
    assert refused.value.is_slave


def test_a_default_slave_before_the_oldest_file_gets_heartbeats_and_never_counts() -> None:
    side = default_side(999)
    assert side.problem is not None
    assert "before the oldest file here, 1000" in side.problem
    assert side.state(LOG) is SlaveState.CANNOT_FOLLOW
    (heartbeat,) = send_all(side, now_ms=5000)
    assert DEFAULT_HEAD.unpack(heartbeat.head) == (999, 0)
    side.receive(encode_default_report(999), LOG, 5000)
    assert (side.reported, side.acknowledged) == (0, 0)
    with pytest.raises(SlaveRefused):
        side.receive(encode_default_report(1000), LOG, 5000)


def test_a_slave_of_ours_before_the_oldest_file_is_refused_as_a_slave() -> None:
    with pytest.raises(SlaveRefused, match="before the oldest file") as refused:
        own_side(999)
    assert refused.value.is_slave


# -- later reports ---------------------------------------------------------------------------------


def test_later_reports_acknowledge_what_was_sent() -> None:
    sides = ((default_side(3000), encode_default_report), (own_side(3000), encode_report))
    for side, report in sides:
        send_all(side)
        side.receive(report(3200), LOG, 0)
        assert (side.reported, side.acknowledged) == (3200, 3200)
        side.receive(report(3500), LOG, 0)
        assert side.acknowledged == 3500


def test_the_first_report_repeated_acknowledges() -> None:
    side = default_side(3400)
    side.receive(encode_default_report(3400), LOG, 0)
    assert side.acknowledged == 3400


def test_a_report_beyond_what_was_sent_is_refused_and_changes_nothing() -> None:
    side = default_side(3000)
    frame = side.next_frame(LOG, 0, MUCH)
    assert frame is not None
    side.sent(len(frame.head) + 200, 0)
    side.receive(encode_default_report(3200), LOG, 0)
    with pytest.raises(SlaveRefused, match="3201, and was sent the log up to 3200") as refused:
        side.receive(encode_default_report(3201), LOG, 0)
    assert not refused.value.is_slave
    assert side.acknowledged == 3200


def test_a_head_that_is_half_sent_counts_for_nothing() -> None:
    side = default_side(3000)
    assert side.next_frame(LOG, 0, MUCH) is not None
    for _ in range(12):
        side.sent(1, 0)
        assert side.sent_log_offset == 3000
    side.sent(1, 0)
    assert side.sent_log_offset == 3001


def test_a_report_beyond_the_end_is_refused_even_if_it_was_sent() -> None:
    side = default_side(3000)
    send_all(side)
    with pytest.raises(SlaveRefused):
        side.receive(encode_default_report(3500), LOG._replace(end=3400), 0)


def test_a_smaller_report_changes_nothing() -> None:
    side = default_side(3000)
    send_all(side)
    side.receive(encode_default_report(3300), LOG, 0)
    side.receive(encode_default_report(3200), LOG, 0)
    assert (side.reported, side.acknowledged) == (3300, 3300)


def test_a_report_before_the_start_of_the_stream_acknowledges_nothing() -> None:
    side = default_side(0)
    send_all(side)
    side.receive(encode_default_report(2999), LOG, 0)
    assert side.acknowledged == 0
    side.receive(encode_default_report(3001), LOG, RULES.without_older_ms)
    assert side.acknowledged == 3001


def test_what_the_disk_has_may_be_less_than_the_first_report() -> None:
    side = own_side(3400, hello(3, is_flushed=True))
    side.receive(encode_report(3300), LOG, 0)
    assert side.acknowledged == 0
    side.receive(encode_report(3400), LOG, 0)
    assert side.acknowledged == 3400


# -- foreign bytes and access ----------------------------------------------------------------------


def test_a_negative_report_is_refused() -> None:
    with pytest.raises(SlaveRefused, match="no slave") as refused:
        default_side(-1)
    assert not refused.value.is_slave


def test_a_report_with_another_state_is_refused() -> None:
    side = own_side(3400)
    with pytest.raises(SlaveRefused, match="state 1"):
        side.receive(b"\0\0\0\1" + bytes(8), LOG, 0)


def test_an_unknown_token_is_refused() -> None:
    side = MasterSide("10.0.0.1", RULES, 0, redeem=lambda token: None)
    with pytest.raises(SlaveRefused, match="token"):
        side.receive(encode_opening(TOKEN), LOG, 0)


def test_without_permission_default_ha_is_refused_and_ours_is_not() -> None:
    def allows(host: str) -> bool:
        assert host == "10.0.0.1"
        return False

    side = MasterSide("10.0.0.1", RULES, 0, redeem=lambda token: None, allows_default=allows)
    with pytest.raises(SlaveRefused, match="haAllowedAddresses"):
        side.receive(bytes(4), LOG, 0)
    own = MasterSide("10.0.0.1", RULES, 0, redeem=lambda token: hello(3), allows_default=allows)
    own.receive(encode_opening(TOKEN) + encode_report(3400), LOG, 0)
    assert own.is_started


def test_where_tls_is_enforced_a_plain_slave_of_ours_is_refused_before_its_token_is_used() -> None:
    redeemed: list[bytes] = []
    side = MasterSide("10.0.0.1", RULES, 0, redeem=lambda token: redeemed.append(token))
    side.lacks_tls = True
    with pytest.raises(SlaveRefused, match="useTLS=true"):
        side.receive(encode_opening(TOKEN), LOG, 0)
    assert not redeemed


def test_tls_to_a_port_without_it_is_refused() -> None:
    side = MasterSide("10.0.0.1", RULES, 0, redeem=lambda token: None)
    with pytest.raises(SlaveRefused, match="tlsServerCertPath here, or useTLS=false"):
        side.receive(b"\x16\x03\x01\x02\x00\x01\x00\x01", LOG, 0)


def test_a_handshake_has_a_time_limit_of_its_own() -> None:
    rules = Rules(handshake_ms=700, first_report_ms=20_000)
    side = MasterSide("10.0.0.1", rules, 0, redeem=lambda token: None)
    side.begin_handshake(100)
    assert side.due_ms() == 800
    assert (side.overdue(799), side.overdue(800)) == (None, "no TLS handshake within 700 ms")
    side.end_handshake(750)
    assert side.overdue(800) is None
    assert side.due_ms() == 20_750


def test_names_are_the_id_or_the_address() -> None:
    assert (default_side(0).name, default_side(0).is_ours) == ("10.0.0.1", False)
    assert (own_side().name, own_side().is_ours) == ("id:3", True)


# -- frames ----------------------------------------------------------------------------------------


def test_bodies_end_at_the_end_of_a_file() -> None:
    assert ranges(send_all(default_side(1900))) == [
        (1900, 100), (2000, 300), (2300, 300), (2600, 300), (2900, 100), (3000, 300), (3300, 200),
    ]  # fmt: skip
    assert ranges(send_all(own_side(1900))) == [
        (1900, 100), (2000, 700), (2700, 300), (3000, 500),
    ]  # fmt: skip


def test_bodies_of_ours_end_at_the_end_of_an_epoch_and_heads_say_which() -> None:
    side = own_side(2300, epochs=(EpochRange(1, 0, 2500), EpochRange(4, 2500)))
    heads = [HEAD.unpack(each.head) for each in send_all(side)]
    assert heads == [
        (2, 200, 2300, 1, 0, 77), (2, 500, 2500, 4, 2500, 77), (2, 500, 3000, 4, 2500, 77),
    ]  # fmt: skip


def test_a_frame_has_at_most_the_bytes_that_may_be_sent() -> None:
    side = default_side(3000)
    assert side.next_frame(LOG, 0, 0) is None
    frame = side.next_frame(LOG, 0, 7)
    assert frame is not None
    assert frame.body_bytes == 7


def test_there_is_no_second_frame_before_the_first_was_sent() -> None:
    side = default_side(3000)
    frame = side.next_frame(LOG, 0, MUCH)
    assert frame is not None
    assert side.next_frame(LOG, 60_000, MUCH) is None
    side.sent(len(frame.head) + frame.body_bytes, 0)
    assert side.next_frame(LOG, 0, MUCH) is not None


def test_a_default_slave_whose_next_file_was_deleted_cannot_follow() -> None:
    side = default_side(1500)
    assert ranges(send_all(side, LOG._replace(end=1600))) == [(1500, 100)]
    later = LOG._replace(first=2000)
    assert send_all(side, later) == []
    assert side.state(later) is SlaveState.CANNOT_FOLLOW
    (heartbeat,) = send_all(side, later, 5000)
    assert DEFAULT_HEAD.unpack(heartbeat.head) == (1600, 0)
    with pytest.raises(SlaveRefused):
        send_all(own_side(1500), later)


def test_the_rate_is_that_of_the_last_full_second() -> None:
    side = default_side(3000)
    send_all(side, now_ms=100)
    assert side.bytes_per_second(999) == 0
    assert side.bytes_per_second(1000) == 500 + 2 * 12
    assert side.bytes_per_second(2500) == 0


# -- time ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "after_ms"), [(default_side, 5000), (own_side, 500)])
def test_a_heartbeat_is_due_after_a_time_without_a_write(
    make: Callable[[int], MasterSide], after_ms: int
) -> None:
    side = make(3500)
    assert side.due_ms() == after_ms
    assert send_all(side, now_ms=after_ms - 1) == []
    (frame,) = send_all(side, now_ms=after_ms)
    assert (frame.log_offset, frame.body_bytes) == (3500, 0)
    assert send_all(side, LOG._replace(end=3600), after_ms + 10) != []
    assert side.due_ms() == 2 * after_ms + 10


def test_a_connection_without_a_report_is_closed() -> None:
    side = default_side()
    side.receive(b"1234567", LOG, 19_000)
    assert side.overdue(19_999) is None
    assert side.overdue(20_000) == "no report within 20000 ms"
    own = MasterSide("10.0.0.1", RULES, 0, redeem=lambda token: hello(3))
    own.receive(encode_opening(TOKEN), LOG, 1000)
    assert own.due_ms() == 6000
    assert own.overdue(5999) is None
    assert own.overdue(6000) == "no report within 5000 ms"


def test_a_slave_that_is_silent_is_closed() -> None:
    side = default_side(3400)
    side.receive(encode_default_report(3400), LOG, 10_000)
    side.receive(b"1234567", LOG, 29_000)
    assert side.overdue(29_999) is None
    assert side.overdue(30_000) == "no report for 20000 ms"


def test_a_slave_that_reports_and_reads_nothing_is_closed() -> None:
    side = default_side(3000)
    assert side.next_frame(LOG, 1000, MUCH) is not None
    side.sent(5, 2000)
    side.receive(encode_default_report(3000), LOG, 21_000)
    assert side.overdue(21_999) is None
    assert side.overdue(22_000) == "it accepted no byte for 20000 ms"


def test_a_slave_without_the_older_files_acknowledges_nothing_that_may_be_in_them() -> None:
    """A send that waits for a slave may lie in a file that a fresh slave of Apache's lacks."""
    side = default_side(0)
    send_all(side)
    side.receive(encode_default_report(LOG.end), LOG, RULES.without_older_ms - 1)
    assert (side.reported, side.acknowledged) == (LOG.end, 0)
    side.receive(encode_default_report(LOG.end), LOG, RULES.without_older_ms)
    assert side.acknowledged == LOG.end


def test_a_slave_that_begins_at_the_oldest_file_acknowledges_at_once() -> None:
    log = LogBounds(first=3000, end=3500, file_bytes=1000)
    side = default_side(0, log)
    send_all(side, log)
    side.receive(encode_default_report(log.end), log, 1)
    assert side.acknowledged == log.end


# -- elected masters -------------------------------------------------------------------------------


def test_a_slave_can_ask_for_the_switch_only_after_its_first_report() -> None:
    side = own_side(3500)
    side.receive(encode_report(3500, HANDOVER_STATE), LOG, 0)
    assert side.asks_handover
    assert side.acknowledged == 3500
    with pytest.raises(SlaveRefused, match="has state 16, not 2"):
        own_side().receive(encode_report(3500, HANDOVER_STATE), LOG, 0)


def test_the_agreement_to_a_switch_follows_the_whole_log_once() -> None:
    side = own_side(3400)
    side.agree(4)
    body, agreement = send_all(side)
    assert HEAD.unpack(body.head)[0] == TRANSFER_STATE
    assert HEAD.unpack(agreement.head) == (HANDOVER_STATE, 0, 3500, 4, 0, 77)
    assert side.next_frame(LOG, 0, MUCH) is None


def test_a_master_that_hangs_sends_no_heartbeat() -> None:
    is_healthy = False
    side = MasterSide(
        "10.0.0.1", RULES, 0, redeem=lambda token: hello(3), may_heartbeat=lambda: is_healthy
    )
    side.receive(encode_opening(TOKEN) + encode_report(3500), LOG, 0)
    assert side.next_frame(LOG, 600, MUCH) is None
    assert side.due_ms() == 1100
    is_healthy = True
    assert side.next_frame(LOG, 1100, MUCH) is not None


# -- announced changes -----------------------------------------------------------------------------


def test_changes_are_sent_before_what_is_stored_after_them() -> None:
    side = own_side(3400)
    side.announce("topics t", b"old")
    side.announce("groups g", b"group")
    side.announce("topics t", b"new")
    side.agree(4)
    changes, body, agreement = send_all(side)
    assert HEAD.unpack(changes.head[: HEAD.size]) == (CHANGES_STATE, 10, 3400, 1, 0, 77)
    assert changes.head[HEAD.size :] == b"new\ngroup\n"
    assert ranges([changes, body, agreement]) == [(3400, 0), (3400, 100), (3500, 0)]
    assert side.sent_log_offset == 3500


def test_changes_that_are_half_sent_count_for_no_part_of_the_log() -> None:
    side = own_side(3400)
    side.announce("topics t", b"line")
    frame = side.next_frame(LOG, 0, MUCH)
    assert frame is not None
    side.sent(len(frame.head) - 1, 0)
    side.announce("topics t", b"another")
    assert side.next_frame(LOG, 0, MUCH) is None
    assert side.sent_log_offset == 3400
    side.sent(1, 0)
    assert b"another" in send_all(side)[0].head


def test_many_changes_take_several_frames() -> None:
    side = own_side(3500)
    lines = [b"%05d" % number + b"x" * 995 for number in range(200)]
    for number, line in enumerate(lines):
        side.announce(f"topics {number}", line)
    sent = send_all(side)
    assert len(sent) == 4
    assert all(len(each.head) <= HEAD.size + CHANGES_BYTES_MAX for each in sent)
    assert b"".join(each.head[HEAD.size :] for each in sent).split() == lines


def test_changes_wait_for_the_first_report_and_are_not_for_slaves_in_default_ha() -> None:
    side = own_side()
    side.announce("topics t", b"line")
    assert send_all(side) == []
    side.receive(encode_report(3500), LOG, 0)
    assert len(send_all(side)) == 1
    apache = default_side(3500)
    apache.announce("topics t", b"line")
    assert send_all(apache) == []


def test_an_entry_that_no_frame_can_have_is_not_announced() -> None:
    side = own_side(3500)
    side.announce("topics t", b"x" * (CHANGES_BYTES_MAX - 1))
    assert len(send_all(side)) == 1
    side.announce("topics t", b"x" * CHANGES_BYTES_MAX)
    assert send_all(side) == []


def test_the_oldest_of_too_many_changes_are_dropped() -> None:
    side = own_side(3500)
    for number in range(HA_CHANGES_MAX + 3):
        side.announce(f"topics {number}", b"%d" % number)
    side.announce(f"topics {HA_CHANGES_MAX}", b"again")
    lines = b"".join(each.head[HEAD.size :] for each in send_all(side)).split()
    assert len(lines) == HA_CHANGES_MAX
    assert lines[0] == b"3"
    assert lines[-3:] == [b"again", b"%d" % (HA_CHANGES_MAX + 1), b"%d" % (HA_CHANGES_MAX + 2)]
