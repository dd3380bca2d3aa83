"""The web console beside the servers of `tianzhou up`, if it is installed and its port is free."""

import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from tianzhou.cli.serve.console import MISSING, started_text
from tianzhou.errors import RemotingError, TianzhouError

if TYPE_CHECKING:
    from tianzhou.console.server import ConsoleServer

LOOPBACK = "127.0.0.1"
CLUSTER = "local"
_NEEDED = ("starlette", "uvicorn", "jinja2", "sqlalchemy", "argon2")


class Servers(Protocol):
    """What `tianzhou up` starts."""

    namesrv_address: str

    async def start(self) -> tuple[str, int]: ...

    async def stop(self) -> None: ...


S = TypeVar("S", bound=Servers)


class WithConsole(Generic[S]):
    """Servers, and then a console that shows them. It is an addition: they run without it, too."""

    def __init__(self, servers: S, data: Path, port: int) -> None:
        self.servers = servers
        self._data = data
        self._port = port
        self._console: ConsoleServer | None = None
        self.line = ""
        """What to say about the console."""

    async def start(self) -> tuple[str, int]:
        """Start all; returns the address of the first server."""
        address = await self.servers.start()
        if any(importlib.util.find_spec(name) is None for name in _NEEDED):
            self.line = MISSING
            return address
        try:
            self._console = self._made()
            await self._console.start()
            self.line = started_text(self._console)
        except RemotingError as e:
            self.line = f"console: not started: {e}; --console-port chooses another port"
        except TianzhouError as e:
            self.line = f"console: not started: {e}"
        return address

    def _made(self) -> "ConsoleServer":
        from tianzhou.console.server import ConsoleServer
        from tianzhou.console.settings import ClusterSettings, ConsoleSettings

        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        cluster = ClusterSettings(name=CLUSTER, namesrv=self.servers.namesrv_address)
        return ConsoleServer(
            ConsoleSettings(
                listen_host=LOOPBACK, listen_port=self._port, clusters=(cluster,),
                data=self._data / "console",
            )
        )  # fmt: skip

    async def stop(self) -> None:
        """Stop all, the console first; safe after a failed `start`."""
        if self._console is not None:
            await self._console.stop()
        await self.servers.stop()


def with_line(text: Callable[[S], str]) -> Callable[[WithConsole[S], str], str]:
    """The text about the servers, and the line about the console."""

    def both(program: WithConsole[S], _: str) -> str:
        return f"{text(program.servers)}\n{program.line}"

    return both
