"""The navigation of every page. An entry is shown where its route exists and the person may."""

from collections.abc import Iterable
from dataclasses import dataclass

from tianzhou.console.text import Text
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.route import Route

IN_A_CLUSTER = (
    ("overview", "/c/{cluster}", Text("Overview")),
    ("brokers", "/c/{cluster}/brokers", Text("Brokers")),
    ("nameservers", "/c/{cluster}/nameservers", Text("Nameservers")),
    ("topics", "/c/{cluster}/topics", Text("Topics")),
    ("groups", "/c/{cluster}/groups", Text("Consumer groups")),
    ("producers", "/c/{cluster}/producers", Text("Producers")),
    ("messages", "/c/{cluster}/messages", Text("Messages")),
    ("letters", "/c/{cluster}/dead-letters", Text("Dead letters")),
    ("statistics", "/c/{cluster}/statistics", Text("Statistics")),
    ("doctor", "/c/{cluster}/doctor", Text("Doctor")),
    ("expansion", "/c/{cluster}/expansion", Text("Expansion")),
    ("pipelines", "/c/{cluster}/pipelines", Text("Pipelines")),
    ("jobs", "/c/{cluster}/jobs", Text("Jobs")),
)
OF_THE_CONSOLE = (
    ("clusters", "/", Text("Clusters")),
    ("people", "/people", Text("People")),
    ("audit", "/audit", Text("Audit")),
    ("settings", "/settings", Text("Settings")),
)
"""Icon, path and name."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One link."""

    icon: str
    url: str
    title: Text
    is_here: bool


def entries(ask: Ask, routes: Iterable[Route], cluster: str) -> tuple[list[Entry], list[Entry]]:
    """The links of a cluster, if the person is at one, and those of the console."""
    allowed = {each.path for each in routes if ask.caller.who >= each.who}
    inside = [
        _entry(ask, icon, ask.url(path.replace("{cluster}", "{}"), cluster), title, path)
        for icon, path, title in IN_A_CLUSTER
        if cluster and path in allowed
    ]
    outside = [
        _entry(ask, icon, ask.url(path), title, path)
        for icon, path, title in OF_THE_CONSOLE
        if path in allowed
    ]
    return inside, outside


def _entry(ask: Ask, icon: str, url: str, title: Text, path: str) -> Entry:
    here = ask.route.path
    is_below = here.startswith(f"{path}/") and path not in ("/", "/c/{cluster}")
    return Entry(icon, url, title, here == path or is_below)
