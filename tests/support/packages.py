"""Programs that tests need, installed as Debian packages if permitted: as root, on Debian.

Several groups of tests run at the same time; apt-get runs one at a time.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

INSTALL_TIMEOUT_S = 900


def may_install() -> bool:
    return (
        os.geteuid() == 0
        and Path("/etc/debian_version").exists()
        and shutil.which("apt-get") is not None
    )


def install(package: str) -> str:
    """Install a package; returns the error of apt-get, if any."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    complaints = ""
    with (Path(tempfile.gettempdir()) / "tianzhou-test-packages").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for arguments in (["update"], ["install", "-y", "--no-install-recommends", package]):
            done = subprocess.run(
                ["apt-get", "-q", *arguments],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=INSTALL_TIMEOUT_S,
            )
            complaints += done.stderr if done.returncode else ""
    return complaints
