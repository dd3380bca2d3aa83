"""Programs that tests need, installed as Debian packages where we may: as root, on Debian.

Several parts of the tests run at the same time; apt-get serves one of them after the other.
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
    """Install a package; what apt-get complained of, if it did."""
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
