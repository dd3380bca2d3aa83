"""etcd programs for tests: from the PATH, from Debian's package, or built by Go.

    program()        etcd on the PATH; else, as root on Debian, the one of the package etcd-server
                     (3.4). The package is unpacked, not installed, so no service is started
    program("3.6")   that version, built from the Go module proxy: about two minutes for each

Both are stored in `.cache/etcd` of the repository and made once. A test that cannot get its program
is skipped, with the reason.
"""

import fcntl
import functools
import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import packages

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "etcd"
PACKAGE = "etcd-server"
RELEASES = {"3.5": "v3.5.35", "3.6": "v3.6.16", "3.7": "v3.7.3"}
"""The versions of the module go.etcd.io/etcd/server/v3 that are built."""
_MODULE = "go.etcd.io/etcd/server/v3"
_MAIN = f"""package main

import (
	"os"

	"{_MODULE}/etcdmain"
)

func main() {{ etcdmain.Main(os.Args) }}
"""
_BUILD_TIMEOUT_S = 1800
_FETCH_TIMEOUT_S = 600


@functools.cache
def program(release: str = "") -> Path:
    """The path of an etcd; of a release, if given. Skips the test if there is none."""
    try:
        return _built(release) if release else _installed()
    except EtcdUnavailable as error:
        pytest.skip(str(error))


class EtcdUnavailable(Exception):
    """There is no such etcd here; the text is the reason, in one line."""


def _installed() -> Path:
    found = shutil.which("etcd")
    if found is not None:
        return Path(found)
    unpacked = CACHE / "debian" / "usr" / "bin" / "etcd"
    with _only_one_process():
        if unpacked.exists():
            return unpacked
        if not packages.may_install():
            raise EtcdUnavailable(f"etcd is not on the PATH (Debian package {PACKAGE})")
        _unpack(CACHE / "debian.new")
        shutil.rmtree(CACHE / "debian", ignore_errors=True)
        (CACHE / "debian.new").rename(CACHE / "debian")
    return unpacked


def _unpack(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    download = ["apt-get", "-q", "download", PACKAGE]
    if _run(download, folder):
        # Without lists of packages, or with old ones.
        complaint = _run(["apt-get", "-q", "update"], folder) or _run(download, folder)
        if complaint:
            raise EtcdUnavailable(f"apt-get cannot fetch {PACKAGE}: {complaint}")
    (archive,) = folder.glob("*.deb")
    complaint = _run(["dpkg-deb", "-x", str(archive), str(folder)], folder)
    archive.unlink()
    if complaint:
        raise EtcdUnavailable(f"dpkg-deb cannot unpack {PACKAGE}: {complaint}")


def _built(release: str) -> Path:
    version = RELEASES[release]
    made = CACHE / f"etcd-{version}"
    with _only_one_process():
        if not made.exists():
            go = shutil.which("go")
            if go is None:
                raise EtcdUnavailable(f"go is not on the PATH, which would build etcd {release}")
            _build(go, version, made)
    return made


def _build(go: str, version: str, made: Path) -> None:
    folder = CACHE / f"build-{version}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "go.mod").write_text("module tianzhou.test/etcd\n\ngo 1.21\n")
    (folder / "main.go").write_text(_MAIN)
    build = [go, "build", "-p", "2", "-trimpath", "-ldflags", "-s -w", "-o", f"{made}.new", "."]
    for command in ([go, "get", f"{_MODULE}@{version}"], build):
        complaint = _run(command, folder, timeout_s=_BUILD_TIMEOUT_S)
        if complaint:
            raise EtcdUnavailable(f"go cannot build etcd {version}: {complaint}")
    Path(f"{made}.new").rename(made)
    shutil.rmtree(folder)


def _run(command: list[str], folder: Path, *, timeout_s: float = _FETCH_TIMEOUT_S) -> str:
    """The last line of what a command complains of; empty if it succeeded."""
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"GOFLAGS": "-mod=mod -buildvcs=false"},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
        timeout=timeout_s,
    )  # fmt: skip
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


@contextmanager
def _only_one_process() -> Generator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
