"""What counts as replicated, and which slaves are in reach."""

from tianzhou.ha.progress import Acknowledgements


class Advances:
    """Acknowledgements, and the values of `replicated_log_offset` that were announced."""

    def __init__(self, in_sync_replicas: int = 2, behind_bytes_max: int = 1000) -> None:
        self.seen: list[int] = []
        self.acknowledgements = Acknowledgements(in_sync_replicas, behind_bytes_max)
        self.acknowledgements.on_advance = self._note

    def _note(self) -> None:
        self.seen.append(self.acknowledgements.replicated_log_offset)

    def connect(
        self, connection: str, name: str = "", at: int = 0, *, is_ours: bool = True
    ) -> list[object]:
        return list(
            self.acknowledgements.connected(
                connection, name or connection, at, 0, is_exclusive=is_ours
            )
        )


def test_one_slave_is_enough_for_two_copies() -> None:
    it = Advances()
    it.connect("a")
    it.connect("b")
    it.acknowledgements.report("a", 50, 50)
    assert it.acknowledgements.replicated_log_offset == 50
    it.acknowledgements.report("b", 40, 40)
    assert it.seen == [50]


def test_even_one_in_sync_replica_waits_for_one_slave() -> None:
    assert [Acknowledgements(n).needed_count for n in (0, 1, 2, 3)] == [1, 1, 1, 2]


def test_three_copies_need_the_second_largest_of_distinct_slaves() -> None:
    it = Advances(3)
    for name in "abc":
        it.connect(name)
    it.acknowledgements.report("a", 50, 50)
    assert it.acknowledgements.replicated_log_offset == 0
    it.acknowledgements.report("b", 30, 30)
    it.acknowledgements.report("c", 40, 40)
    assert it.seen == [30, 40]


def test_two_connections_of_one_address_are_one_slave() -> None:
    it = Advances(3)
    assert it.connect("one", "10.0.0.1", is_ours=False) == []
    assert it.connect("two", "10.0.0.1", is_ours=False) == []
    it.acknowledgements.report("one", 50, 50)
    it.acknowledgements.report("two", 50, 50)
    assert it.acknowledgements.replicated_log_offset == 0
    assert not it.acknowledgements.are_in_reach(50)
    it.connect("three", "10.0.0.2", is_ours=False)
    it.acknowledgements.report("three", 20, 20)
    assert it.acknowledgements.replicated_log_offset == 20


def test_a_second_connection_of_an_id_replaces_the_first_and_its_acknowledgement() -> None:
    it = Advances()
    it.connect("old", "id:1")
    it.acknowledgements.report("old", 50, 50)
    assert it.connect("new", "id:1", 10) == ["old"]
    assert it.acknowledgements.replicated_log_offset == 0
    it.acknowledgements.report("new", 20, 20)
    assert it.seen == [50, 20]
    it.acknowledgements.disconnected("old")
    assert it.acknowledgements.replicated_log_offset == 20


def test_a_disconnected_slave_does_not_count() -> None:
    it = Advances()
    it.connect("a")
    it.acknowledgements.report("a", 50, 50)
    it.acknowledgements.disconnected("a")
    it.acknowledgements.disconnected("a")
    assert it.acknowledgements.replicated_log_offset == 0
    assert not it.acknowledgements.are_in_reach(0)


def test_a_slave_counts_as_in_reach_from_its_first_report_up_to_the_limit() -> None:
    it = Advances(behind_bytes_max=1000)
    assert not it.acknowledgements.are_in_reach(0)
    it.connect("a", at=500)
    assert it.acknowledgements.are_in_reach(1500)
    assert not it.acknowledgements.are_in_reach(1501)
    assert it.acknowledgements.replicated_log_offset == 0
    it.acknowledgements.report("a", 600, 600)
    assert it.acknowledgements.are_in_reach(1600)


def test_an_acknowledgement_never_falls_on_a_connection() -> None:
    it = Advances()
    it.connect("a")
    it.acknowledgements.report("a", 50, 50)
    it.acknowledgements.report("a", 50, 40)
    assert it.acknowledgements.replicated_log_offset == 50


def test_changed_limits_take_effect_at_once() -> None:
    it = Advances()
    it.connect("a")
    it.connect("b")
    it.acknowledgements.report("a", 50, 50)
    it.acknowledgements.report("b", 30, 30)
    it.acknowledgements.set_limits(3, 10)
    assert it.acknowledgements.replicated_log_offset == 30
    assert not it.acknowledgements.are_in_reach(60)
    it.acknowledgements.set_limits(2, 1000)
    assert it.seen == [50, 50]
