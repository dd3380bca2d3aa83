"""The event loop of programs."""

import asyncio

import pytest

from tianzhou.remoting.event_loop import new_event_loop, run


async def _which() -> str:
    return type(asyncio.get_running_loop()).__module__


def test_uvloop_is_used_if_installed() -> None:
    pytest.importorskip("uvloop")
    assert run(_which()).startswith("uvloop")


def test_asyncio_is_used_without_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "uvloop", None)
    loop = new_event_loop()
    try:
        assert type(loop).__module__.startswith("asyncio")
    finally:
        loop.close()
