"""A console with an administrator and a reader."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.console.clients import ConsoleUnderTest


@pytest.fixture
async def console(tmp_path: Path) -> AsyncIterator[ConsoleUnderTest]:
    made = ConsoleUnderTest(tmp_path)
    await made.add("ada", is_admin=True)
    await made.add("rita")
    yield made
    await made.close()


@pytest.fixture
def stranger(console: ConsoleUnderTest) -> httpx.AsyncClient:
    return console.stranger()


@pytest.fixture
async def client(console: ConsoleUnderTest) -> httpx.AsyncClient:
    """The browser of an administrator."""
    return await console.browser("ada")


@pytest.fixture
async def reader(console: ConsoleUnderTest) -> httpx.AsyncClient:
    """The browser of a reader."""
    return await console.browser("rita")
