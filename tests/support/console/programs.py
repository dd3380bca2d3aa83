"""Consoles with a socket, from start to stop."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from tianzhou.console.server import ConsoleServer
from tianzhou.console.settings import ConsoleSettings

SAME = {"Sec-Fetch-Site": "same-origin"}
"""What a browser sends with the forms of our own pages."""


@asynccontextmanager
async def running(settings: ConsoleSettings, **more: str) -> AsyncGenerator[ConsoleServer]:
    """A console; `more` is the account of the first start."""
    server = ConsoleServer(settings, **more)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()
