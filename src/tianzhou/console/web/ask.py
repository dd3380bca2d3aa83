"""What views and changes are given: the request, the person, the console with its clusters."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from tianzhou.clock import wall_ms
from tianzhou.console.accounts.oidc import Provider
from tianzhou.console.accounts.passwords import Passwords
from tianzhou.console.accounts.people import Person
from tianzhou.console.accounts.sessions import Session
from tianzhou.console.accounts.tokens import Token
from tianzhou.console.collect.answers import Answers
from tianzhou.console.collect.collector import Collector
from tianzhou.console.collect.snapshot import Snapshot
from tianzhou.console.settings import ClusterSettings, ConsoleSettings
from tianzhou.console.tables import ConsoleDatabase
from tianzhou.console.text import Text
from tianzhou.console.web.metrics import Metrics
from tianzhou.console.web.refusals import LoginNeeded, NotFound
from tianzhou.console.web.route import Route, Who
from tianzhou.console.web.slots import Slots, Tails

if TYPE_CHECKING:
    from tianzhou.admin import Admin

CHANGE_SHOWN_S = 1.0
"""How long the answer to a change waits for a round that shows it."""


@dataclass(slots=True, kw_only=True)
class WatchedCluster:
    """A cluster that the console shows."""

    settings: ClusterSettings
    admin: "Admin"
    collector: Collector | None = None

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest one; None before the first round has ended."""
        return self.collector.snapshot if self.collector is not None else None

    @property
    def is_stale(self) -> bool:
        """Whether the snapshot is too old to be shown as fresh."""
        return self.collector is not None and not self.collector.is_fresh


@dataclass(slots=True, kw_only=True)
class Console:
    """What all requests of one console share."""

    settings: ConsoleSettings
    database: ConsoleDatabase
    passwords: Passwords = field(default_factory=Passwords)
    clusters: dict[str, WatchedCluster] = field(default_factory=dict[str, WatchedCluster])
    reload_clusters: Callable[[], Awaitable[None]] | None = None
    """Take notice of clusters that were added or removed; None in a console that collects none."""
    provider: Provider | None = None
    """Login by OpenID, where it is set up."""
    routes: Sequence[Route] = ()
    metrics: Metrics = field(default_factory=Metrics)
    answers: Answers = field(default_factory=Answers)
    """What detail pages ask brokers."""
    now_ms: Callable[[], int] = wall_ms
    started_ms: int = field(default_factory=wall_ms)
    searches: Slots = field(default_factory=Slots)
    tails: Tails = field(default_factory=Tails)
    job_added: asyncio.Event = field(default_factory=asyncio.Event)
    """Wakes the worker of jobs."""

    async def note_change(self, cluster_name: str) -> None:
        """A cluster was changed: ask its brokers again, so that the next page shows it."""
        cluster = self.clusters.get(cluster_name)
        if cluster is None:
            return
        self.answers.forget(cluster.name)
        collector = cluster.collector
        if collector is not None and collector.is_leader:
            version = collector.snapshot.version if collector.snapshot is not None else 0
            collector.refresh()
            await collector.newer_than(version, CHANGE_SHOWN_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sends a request: a person by browser or token, or a stranger."""

    person: Person | None = None
    session: Session | None = None
    token: Token | None = None

    @property
    def who(self) -> Who:
        if self.person is None:
            return Who.STRANGER
        return Who.ADMINISTRATOR if self.person.is_admin else Who.READER


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Whose topics and groups the person sees. For now: all."""

    def sees(self, name: str) -> bool:
        """Whether a topic or group is shown."""
        return bool(name)

    @property
    def key(self) -> str:
        """Equal for people who see the same."""
        return "all"


@dataclass(slots=True, kw_only=True)
class Ask:
    """One request."""

    console: Console
    route: Route
    caller: Caller
    method: str = "GET"
    path: Mapping[str, str] = field(default_factory=dict[str, str])
    """The names in the address, such as `cluster`."""
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    origin: str = ""
    """Scheme, name and port under which the browser addresses the console."""
    address: str = "/"
    """The path below the root, without `.json`."""
    form: str = "html"
    """html, json or csv."""
    language: str = "en"
    zone: str = "UTC"
    theme: str = ""
    ip: str = ""
    agent: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    cookies: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    scope: Scope = field(default_factory=Scope)
    new_cookies: list[str] = field(default_factory=list[str])
    """`Set-Cookie` headers of the response."""

    @property
    def now_ms(self) -> int:
        return self.console.now_ms()

    @property
    def database(self) -> ConsoleDatabase:
        return self.console.database

    @property
    def person(self) -> Person:
        """The person who asks; the gate lets no stranger pass where this is used."""
        if self.caller.person is None:
            raise LoginNeeded
        return self.caller.person

    @property
    def cluster(self) -> WatchedCluster:
        """The cluster in the address. Raises NotFound."""
        name = self.path.get("cluster", "")
        cluster = self.console.clusters.get(name)
        if cluster is None:
            raise NotFound(Text("There is no cluster {name}.", name=name))
        return cluster

    def url(self, path: str, *names: object, **query: object) -> str:
        """An address: url("/c/{}/topics/{}", cluster, topic, page=2). Names are percent-encoded."""
        filled = path.format(*(quote(str(name), safe="") for name in names))
        chosen = {name: str(each) for name, each in query.items() if each not in (None, "")}
        rest = f"?{urlencode(chosen)}" if chosen else ""
        return f"{self.console.settings.root_path}{filled}{rest}"

    def same(self, **query: object) -> str:
        """The address of this page with other values in its query; None takes one away."""
        merged: dict[str, object] = {**self.query, **query}
        return self.url(self.here, **merged)

    @property
    def here(self) -> str:
        """The address of this page, percent-encoded."""
        return quote(self.address)
