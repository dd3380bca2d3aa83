"""One replica's role without a group around it: a test steps events and reads the actions."""

from collections.abc import Iterable
from typing import TypeVar

from msgspec.structs import replace

from tianzhou.ha.authority.values import (
    Alive,
    GroupState,
    Known,
    Outcome,
    Replica,
    Result,
    View,
    Wish,
)
from tianzhou.ha.epochs import Epoch, Epochs
from tianzhou.ha.replica_facts import FlushMode, ReplicaFacts, Start
from tianzhou.ha.roles import events, machine
from tianzhou.ha.roles.actions import Action, Propose
from tianzhou.ha.roles.facts import LogFacts, Settings
from tianzhou.ha.roles.role import Mode, Session

A = TypeVar("A")
START = Start(was_clean=True, boot_id="boot", store_id="store", flush=FlushMode.ASYNC)
FACTS = ReplicaFacts(
    group="g", id=1, store_id="store", boot_id="boot", followed_epoch=4, highest_epoch=4,
    cluster_id="etcd",
)  # fmt: skip
EPOCHS: Epochs = (Epoch(4, 0),)
INCARNATION = 10
"""Of replica 1; that of replica 2 is 20, and so on."""


def state(**changes: object) -> GroupState:
    """Replica 2 is master of epoch 4; 1, 2 and 3 are in sync."""
    base = GroupState(group="g", epoch=4, master=2, master_incarnation=20, in_sync=(1, 2, 3))
    return replace(base, **changes)


class OneRole:
    """Replica 1."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        facts: ReplicaFacts = FACTS,
        end: int = 100,
        epochs: Epochs = EPOCHS,
        starts: bool = True,
    ) -> None:
        """A started process, which has joined and has a lease, but saw no state yet."""
        self.now_ms = 1_000_000
        self.role = machine.new_role(settings or Settings())
        self.log = LogFacts(end, end, epochs)
        self.revision = 100
        self.done: list[Action] = []
        if starts:
            self.step(events.Started(facts, START, self.log, "new"))
            self.step(events.Joined(1, INCARNATION))
            self.renew()

    def step(self, event: events.Event) -> list[Action]:
        """One step; the actions are remembered, too."""
        actions = machine.step(self.role, event, self.now_ms)
        self.done += actions
        return actions

    def renew(self) -> None:
        """The lease is renewed now."""
        self.step(events.LeaseRenewed(self.now_ms))

    def wait(self, ms: int, *, renews: bool = True) -> list[Action]:
        """Time passes, in ticks of 100 ms."""
        actions: list[Action] = []
        for _ in range(0, ms, 100):
            self.now_ms += 100
            if renews:
                actions += self.step(events.LeaseRenewed(self.now_ms))
            actions += self.step(events.Tick(self.log))
        return actions

    def see(
        self,
        shown: GroupState | None,
        *,
        alive: Iterable[int] = (1, 2, 3),
        revision: int | None = None,
        ends: dict[int, int] | None = None,
        priorities: dict[int, int] | None = None,
        wish: Wish | None = None,
        absent: Iterable[int] = (),
        cluster_id: str = "etcd",
        empty: bool = False,
        seen: tuple[int, int] = (0, 0),
        seen_now: tuple[int, int] = (0, 0),
    ) -> list[Action]:
        """A view arrives; its revision is a new one unless it is given. `seen` is what the other
        replicas said at their start of a newer state, `seen_now` what those that are alive say.
        """
        self.revision += 1
        number = self.revision if revision is None else revision
        leases = {
            each: Known(
                Alive(
                    incarnation=10 * each,
                    epoch=4,
                    end=(ends or {}).get(each, 100),
                    confirm=0,
                    seen_epoch=seen_now[0] if each != 1 else 0,
                    seen_revision=seen_now[1] if each != 1 else 0,
                ),
                50 + each,
            )
            for each in alive
        }
        replicas = {
            each: Known(
                Replica(
                    addr=f"h{each}:1", ha=f"h{each}:2", store_id="", boot_id="", empty=empty,
                    priority=(priorities or {}).get(each, 1), group="g",
                    seen_epoch=seen[0] if each != 1 else 0,
                    seen_revision=seen[1] if each != 1 else 0,
                ),
                10 * each,
            )
            for each in (1, 2, 3)
            if each not in absent
        }  # fmt: skip
        return self.step(
            events.Viewed(
                View(
                    cluster_id=cluster_id,
                    read_revision=self.revision,
                    revision=0 if shown is None else number,
                    state=shown,
                    replicas=replicas,
                    alive=leases,
                    wish=None if wish is None else Known(wish, 77),
                )
            )
        )

    def follow(self, *, master: int = 2, epoch: int = 4) -> list[Action]:
        """Its master accepts the hello, and the stream begins."""
        offer = events.MasterOffered(master, epoch, EPOCHS, 100, self.log)
        return self.step(offer)

    def answer(self, result: Result) -> list[Action]:
        """The last proposal ends."""
        self.revision += 1
        number = self.last(Propose).number
        return self.step(events.Answered(number, Outcome(result, self.revision)))

    def lead(
        self, shown: GroupState | None = None, priorities: dict[int, int] | None = None
    ) -> Session:
        """It becomes master: of the state, if given, else because it is named in it."""
        self.see(shown or state(master=1), priorities=priorities)
        self.answer(Result.OK)
        epoch = self.last(Propose).proposal.state.epoch
        self.log = LogFacts(self.log.end, self.log.flushed, (*EPOCHS, Epoch(epoch, self.log.end)))
        self.step(events.Led(epoch, self.log))
        assert self.role.mode is Mode.MASTER
        return self.session

    def connect(self, slave: int, end: int | None = None) -> None:
        """A slave connects and acknowledges an end, by default the whole log."""
        self.step(events.SlaveConnected(slave, 10 * slave))
        self.acknowledge(slave, self.log.end if end is None else end)

    def acknowledge(self, slave: int, end: int) -> None:
        """A slave acknowledges, and the machine notices."""
        self.session.counted.acknowledge(slave, end)
        self.step(events.Tick(self.log))

    def store(self, end: int) -> None:
        """The log grows to this end."""
        self.log = LogFacts(end, end, self.log.epochs)
        self.step(events.Tick(self.log))

    @property
    def session(self) -> Session:
        """That of a master."""
        assert self.role.session is not None
        return self.role.session

    def last(self, kind: type[A]) -> A:
        """The last action of a kind."""
        return self.all(kind)[-1]

    def all(self, kind: type[A]) -> list[A]:
        """All actions of a kind so far."""
        return [each for each in self.done if isinstance(each, kind)]


def of(actions: list[Action], kind: type[A]) -> list[A]:
    """Those of a kind."""
    return [each for each in actions if isinstance(each, kind)]
