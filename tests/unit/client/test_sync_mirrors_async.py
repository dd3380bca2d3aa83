"""The asyncio and the blocking clients have the same names and arguments."""

import inspect

import pytest

from tianzhou import client
from tianzhou.client import sync

FOR_THE_HUB = frozenset(("group", "heartbeat", "topics", "on_route", "on_request", "consume_type"))
"""The hub calls these of asynchronous clients; blocking ones contain such a client."""
FOR_SENDS_IN_FLIGHT = frozenset(("on_first_response", "on_first_failure"))
"""A message in flight calls these of its producer."""
NOT_OF_THE_CLASS = frozenset(("settings",))
"""An attribute that asynchronous clients get when they are made."""
MORE_ARGUMENTS = {"wait_closed": frozenset(("timeout_s",))}
"""An asynchronous wait can be cancelled; a thread needs a time-out."""


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def arguments(kind: type, name: str) -> dict[str, object] | None:
    """The parameters of a method: kinds and defaults by name; None for a property."""
    found = inspect.getattr_static(kind, name)
    if isinstance(found, property):
        return None
    parameters = inspect.signature(getattr(kind, name)).parameters
    return {each.name: (each.kind, each.default) for each in parameters.values()}


@pytest.mark.parametrize("name", sync.__all__)
def test_both_clients_have_the_same_names(name: str) -> None:
    plain, blocking = public(getattr(client, name)), public(getattr(sync, name))
    assert plain - blocking - FOR_THE_HUB - FOR_SENDS_IN_FLIGHT == set()
    assert blocking - plain - NOT_OF_THE_CLASS == set()


@pytest.mark.parametrize("name", sync.__all__)
def test_both_clients_have_the_same_arguments(name: str) -> None:
    plain, blocking = getattr(client, name), getattr(sync, name)
    for each in sorted(public(plain) & public(blocking) | {"__init__"}):
        wanted, found = arguments(plain, each), arguments(blocking, each)
        for extra in MORE_ARGUMENTS.get(each, ()):
            assert found is not None
            del found[extra]
        assert found == wanted, f"{name}.{each}"


def test_every_client_has_a_blocking_version() -> None:
    clients = {
        name
        for name in client.__all__
        if inspect.isclass(kind := getattr(client, name)) and hasattr(kind, "__aenter__")
    }
    assert clients == set(sync.__all__)
