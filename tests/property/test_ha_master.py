"""The master's side of replication: acknowledgements beside a plain model; any bytes, any split."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.support.ha import hello

from tianzhou.ha.frames import encode_default_report, encode_opening, encode_report
from tianzhou.ha.master_side import Frame, LogBounds, MasterSide, Rules, SlaveRefused
from tianzhou.ha.progress import Acknowledgements

CONNECTIONS = st.integers(0, 7)
OFFSETS = st.integers(0, 40)
TOKEN = bytes(range(16))
LOG = LogBounds(first=2000, end=9500, file_bytes=1000)
RULES = Rules(batch_bytes=300, own_batch_bytes=700)


class AcknowledgementsMachine(RuleBasedStateMachine):
    """The model: what each connection said, and every slave's best word on its open connections."""

    def __init__(self) -> None:
        super().__init__()
        self.advances: list[int] = []
        self.behind_max = 10
        self.it = Acknowledgements(2, self.behind_max)
        self.it.on_advance = lambda: self.advances.append(self.it.replicated_log_offset)
        self.needed = 1
        self.open: dict[int, tuple[str, int, int]] = {}
        self.before = 0

    def name_of(self, connection: int) -> tuple[str, bool]:
        """Connections 0 to 3 are of two ids, the others of two addresses."""
        is_ours = connection < 4
        return (f"id:{connection % 2}" if is_ours else f"10.0.0.{connection % 2}"), is_ours

    @rule(connection=CONNECTIONS, reported=OFFSETS, acknowledges=st.booleans())
    def connect(self, connection: int, reported: int, acknowledges: bool) -> None:
        if connection in self.open:
            return
        name, is_ours = self.name_of(connection)
        acknowledged = reported if acknowledges else 0
        expected = {one for one, (other, _, _) in self.open.items() if is_ours and other == name}
        replaced = self.it.connected(connection, name, reported, acknowledged, is_exclusive=is_ours)
        assert set(replaced) == expected
        for each in expected:
            del self.open[each]
        self.open[connection] = (name, reported, acknowledged)

    @rule(connection=CONNECTIONS, log_offset=OFFSETS)
    def report(self, connection: int, log_offset: int) -> None:
        if connection not in self.open:
            return
        name, reported, acknowledged = self.open[connection]
        self.it.report(connection, max(reported, log_offset), max(acknowledged, log_offset))
        self.open[connection] = (name, max(reported, log_offset), max(acknowledged, log_offset))

    @rule(connection=CONNECTIONS)
    def disconnect(self, connection: int) -> None:
        self.it.disconnected(connection)
        self.open.pop(connection, None)

    @rule(copies=st.integers(0, 4), behind_max=st.integers(1, 20))
    def change_limits(self, copies: int, behind_max: int) -> None:
        self.it.set_limits(copies, behind_max)
        self.needed, self.behind_max = max(copies, 2) - 1, behind_max

    @invariant()
    def replicated_is_what_enough_slaves_have(self) -> None:
        names = {name for name, _, _ in self.open.values()}
        replicated = max(
            (
                offset
                for offset in range(41)
                if sum(
                    any(other == name and at >= offset for other, _, at in self.open.values())
                    for name in names
                )
                >= self.needed
            ),
            default=0,
        )
        assert self.it.replicated_log_offset == replicated
        if replicated > self.before:
            assert self.advances == [replicated]
        else:
            assert self.advances == []
        self.advances.clear()
        self.before = replicated

    @invariant()
    def slaves_are_in_reach_if_enough_are_near_the_end(self) -> None:
        for end in (0, 10, 25, 60):
            near = {name for name, at, _ in self.open.values() if end - at <= self.behind_max}
            assert self.it.are_in_reach(end) == (len(near) >= self.needed)


AcknowledgementsMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestAcknowledgements = AcknowledgementsMachine.TestCase


# -- bytes -----------------------------------------------------------------------------------------

Side = Callable[[], MasterSide]


def default_side() -> MasterSide:
    return MasterSide("10.0.0.1", RULES, 0, redeem=lambda token: None)


def own_side() -> MasterSide:
    return MasterSide(
        "10.0.0.1", RULES, 0, redeem=lambda token: hello(3) if token == TOKEN else None
    )


def step(side: MasterSide) -> Frame | None:
    """Send a frame as a whole."""
    frame = side.next_frame(LOG, 0, 10**9)
    if frame is not None:
        side.sent(len(frame.head) + frame.body_bytes, 0)
    return frame


def seen(side: MasterSide) -> tuple[object, ...]:
    return side.is_started, side.reported, side.acknowledged, side.next_log_offset, side.problem


def fed(side: MasterSide, pieces: list[bytes], *, drains: bool) -> tuple[object, ...]:
    """What the side knows after these pieces; everything is sent after each with `drains`."""
    for piece in pieces:
        try:
            side.receive(piece, LOG, 0)
        except SlaveRefused as refusal:
            return (*seen(side), str(refusal))
        while drains and step(side) is not None:
            pass
    return seen(side)


REPORTS = st.lists(st.one_of(st.integers(1500, 9600), st.just(0)), min_size=1, max_size=5)


@given(REPORTS, st.booleans())
def test_reports_split_at_every_byte_mean_the_same(reports: list[int], is_ours: bool) -> None:
    make: Side = own_side if is_ours else default_side
    encode = encode_report if is_ours else encode_default_report
    stream = (encode_opening(TOKEN) if is_ours else b"") + b"".join(map(encode, reports))
    whole = fed(make(), [stream], drains=False)
    for cut in range(1, len(stream)):
        assert fed(make(), [stream[:cut], stream[cut:]], drains=False) == whole
    assert fed(make(), [stream[at : at + 1] for at in range(len(stream))], drains=False) == whole


@given(st.lists(st.binary(max_size=40), max_size=8), st.booleans(), st.booleans())
def test_random_bytes_acknowledge_nothing_that_was_not_sent(
    pieces: list[bytes], is_ours: bool, starts_well: bool
) -> None:
    side = own_side() if is_ours else default_side()
    if starts_well:
        report = encode_report if is_ours else encode_default_report
        side.receive((encode_opening(TOKEN) if is_ours else b"") + report(2500), LOG, 0)
    for piece in pieces:
        before = side.acknowledged
        try:
            side.receive(piece, LOG, 0)
        except SlaveRefused:
            assert side.acknowledged in (before, *_reports_in(pieces))
            break
        assert len(side._partial) < 20  # pyright: ignore[reportPrivateUsage]
        step(side)
    assert side.acknowledged <= side.sent_log_offset <= LOG.end


def _reports_in(pieces: list[bytes]) -> set[int]:
    """Every number that the bytes may be read as."""
    stream = b"".join(pieces)
    return {int.from_bytes(stream[at : at + 8], "big") for at in range(len(stream))}


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1), st.integers(0, 900))
def test_lying_reports_never_count(first: int, second: int, sent_bytes: int) -> None:
    """Only a number between the start of the stream and what was sent acknowledges anything."""
    side = default_side()
    try:
        side.receive(encode_default_report(first), LOG, 0)
    except SlaveRefused:
        assert first < 0 or first > LOG.end
        assert not side.is_started
        return
    assert 0 <= first <= LOG.end
    frame = side.next_frame(LOG, 0, max(sent_bytes, 1))
    if frame is not None:
        side.sent(len(frame.head) + frame.body_bytes, 0)
    start = first or 9000
    sent = side.sent_log_offset
    try:
        side.receive(encode_default_report(second), LOG, 0)
    except SlaveRefused:
        assert second < 0 or second > sent
        assert side.acknowledged == 0
    else:
        counts = side.problem is None and start <= second <= sent
        assert side.acknowledged == (second if counts else 0)


@given(st.integers(0, 9500), st.booleans(), st.lists(st.integers(1, 900), max_size=60))
def test_frames_are_the_log_without_a_gap_however_the_socket_accepts_them(
    first: int, is_ours: bool, counts: list[int]
) -> None:
    side = own_side() if is_ours else default_side()
    report = encode_report if is_ours else encode_default_report
    try:
        side.receive((encode_opening(TOKEN) if is_ours else b"") + report(first), LOG, 0)
    except SlaveRefused:
        assert 0 < first < LOG.first
        return
    position = side.next_log_offset
    left, sent = 0, position
    for count in counts:
        if not left:
            frame = side.next_frame(LOG, 0, 10**9)
            if frame is None:
                break
            assert frame.log_offset == position
            position += frame.body_bytes
            first_file = frame.log_offset // LOG.file_bytes
            assert (position - 1) // LOG.file_bytes == first_file
            left = len(frame.head) + frame.body_bytes
        accepted = min(count, left)
        side.sent(accepted, 0)
        left -= accepted
        assert sent <= side.sent_log_offset <= position
        sent = side.sent_log_offset
        assert (sent == position) == (left == 0)
