"""Running a server in the foreground: signals, event loop, one-line errors."""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol, TypeVar

from tianzhou.cli.serve.pidfiles import pidfile
from tianzhou.cli.shared.terminal import FAILED, OK, print_error, print_line
from tianzhou.descriptors import log_descriptor_limit, raise_descriptor_limit
from tianzhou.errors import TianzhouError
from tianzhou.remoting import event_loop
from tianzhou.remoting.address import format_address
from tianzhou.remoting.event_loop import spare_collections

log = logging.getLogger(__name__)

_SWITCH_INTERVAL_S = 0.0005
"""How long another thread may hold the interpreter lock against the event loop. With Python's
default of 5 ms, a thread that flushes or saves tables would set the p99 latency of requests."""


class Program(Protocol):
    """A server that can be started and stopped once."""

    async def start(self) -> tuple[str, int]: ...

    async def stop(self) -> None: ...


P = TypeVar("P", bound=Program)


def run(name: str, make: Callable[[], P], on_started: Callable[[P, str], str]) -> int:
    """Run a program until a signal stops it; returns the exit code.

    `on_started` returns the line to print, given program and listen address. SIGTERM and SIGINT
    stop it cleanly; a second one kills it.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    raise_descriptor_limit()
    try:
        event_loop.run(_run(name, make, on_started))
    except (TianzhouError, OSError) as e:
        print_error(name, e)
        return FAILED
    except KeyboardInterrupt:
        return FAILED
    return OK


async def _run(name: str, make: Callable[[], P], on_started: Callable[[P, str], str]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)

    def asked_to_stop(number: signal.Signals) -> None:
        log.info("%s: stopping on %s", name, number.name)
        stop.set()
        for each in signals:
            loop.remove_signal_handler(each)

    for each in signals:
        loop.add_signal_handler(each, asked_to_stop, each)
    program = make()
    # The pidfile exists until the program has stopped, so that `tianzhou stop` can wait for it.
    with ExitStack() as stack:
        try:
            address = format_address(*await program.start())
            stack.enter_context(pidfile(name, address))
            print_line(on_started(program, address))
            log_descriptor_limit()
            spare_collections()
            await stop.wait()
        finally:
            await program.stop()
    log.info("%s: stopped", name)
