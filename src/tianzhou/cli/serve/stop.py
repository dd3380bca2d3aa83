"""Stopping the servers of this user with SIGTERM."""

import time

from tianzhou.cli.serve.pidfiles import Running, running
from tianzhou.cli.shared.terminal import FAILED, OK, print_error, print_line

STOCK_NAMES = {"namesrv": "mqnamesrv", "broker": "mqbroker"}
_POLL_S = 0.05


def stop_all(command: str, program: str, wait_s: float) -> int:
    """Send SIGTERM to every running server of a kind; prints the lines of RocketMQ's script.

    Waits up to `wait_s` for their exit. Returns the exit code.
    """
    stock_name = STOCK_NAMES[program]
    found = running(program)
    if not found:
        print_line(f"No {stock_name} running.")
        return FAILED
    exit_code = OK
    for server in found:
        print_line(f"The {stock_name}({server.pid}) is running...")
        try:
            server.ask_to_stop()
        except ProcessLookupError:
            print_line(f"The {stock_name}({server.pid}) has already ended")
        except PermissionError as e:
            print_error(command, f"cannot stop {stock_name}({server.pid}): {e.strerror}")
            exit_code = FAILED
        else:
            print_line(f"Send shutdown request to {stock_name}({server.pid}) OK")
    if wait_s > 0 and exit_code == OK:
        exit_code = _wait(command, stock_name, found, wait_s)
    return exit_code


def _wait(command: str, stock_name: str, servers: list[Running], wait_s: float) -> int:
    deadline_s = time.monotonic() + wait_s
    while alive := [server for server in servers if server.is_alive()]:
        if time.monotonic() >= deadline_s:
            pids = ", ".join(str(server.pid) for server in alive)
            print_error(command, f"{stock_name} {pids} still running after {wait_s:g} s")
            return FAILED
        time.sleep(_POLL_S)
    print_line(f"{stock_name} has stopped")
    return OK
