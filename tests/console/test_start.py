"""`tianzhou console` as a program: it starts, prints its link, serves, and stops on SIGTERM."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from tests.support.ports import free_port


def test_the_command_serves_the_set_up_page_that_it_prints(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    command = [
        sys.executable, "-m", "tianzhou", "console", "--listen", address, "--namesrv",
        "127.0.0.1:1", "--data", str(tmp_path),
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as console:
        assert console.stdout is not None
        line = console.stdout.readline()
        link = re.search(rf"http://{address}/setup/\S+", line)
        assert link, line
        assert httpx.get(link.group()).status_code == 200
        assert httpx.get(f"http://{address}/people.json").status_code == 401
        console.send_signal(signal.SIGTERM)
        assert console.wait(20) == 0
