"""The program with the stock Go client, in `go/`.

It is built into `.cache` of the repository, with the versions that its `go.sum` names.
"""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent / "go"
CACHE = Path(__file__).parents[3] / ".cache" / "go"
FETCH_TIMEOUT_S = 300


def _run_go(go: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Do not change the sources, and do not fetch another Go toolchain.
    settings = {"GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "local"}
    return subprocess.run(
        [go, *arguments],
        cwd=SOURCES,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=FETCH_TIMEOUT_S,
        check=False,
    )


def built_program() -> Path:
    """The compiled program, named by a hash of its sources; the test is skipped without Go."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no Go client: go is missing")
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    built = CACHE / f"exchange-{digest.hexdigest()[:16]}"
    if not built.exists():
        fetched = _run_go(go, "mod", "download")
        if fetched.returncode != 0:
            reason = (fetched.stderr.strip().splitlines() or ["no output"])[-1]
            pytest.skip(f"no Go client: its modules cannot be fetched: {reason[:300]}")
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = built.with_suffix(f".{os.getpid()}")
        done = _run_go(go, "build", "-o", str(partial), ".")
        assert done.returncode == 0, done.stderr
        partial.rename(built)
    return built
