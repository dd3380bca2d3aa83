"""Our broker with the stock Go client, an independent implementation of the protocol.

The program in `go/` is built into `.cache` of the repository, with the versions that its `go.sum`
names. Without Go or its modules the test is skipped, with the reason.
"""

import hashlib
import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.apache.test_broker_compat import create_topic, our_cluster

pytestmark = pytest.mark.apache

SOURCES = Path(__file__).parents[1] / "support" / "apache" / "go"
CACHE = Path(__file__).parent.parent.parent / ".cache" / "go"
FETCH_TIMEOUT_S = 300
RUN_TIMEOUT_S = 120
COUNT = 20
WAYS = ("sync", "async", "oneway", "batch")


def run_go(go: str, *arguments: str) -> subprocess.CompletedProcess[str]:
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


@pytest.fixture(scope="module")
def program() -> Path:
    """The compiled program, named by a hash of its sources."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no Go client: go is missing")
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    built = CACHE / f"exchange-{digest.hexdigest()[:16]}"
    if not built.exists():
        fetched = run_go(go, "mod", "download")
        if fetched.returncode != 0:
            reason = (fetched.stderr.strip().splitlines() or ["no output"])[-1]
            pytest.skip(f"no Go client: its modules cannot be fetched: {reason[:300]}")
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = built.with_suffix(f".{os.getpid()}")
        done = run_go(go, "build", "-o", str(partial), ".")
        assert done.returncode == 0, done.stderr
        partial.rename(built)
    return built


def test_go_client_sends_and_consumes(program: Path) -> None:
    topic = "from-go"
    with our_cluster() as cluster:
        create_topic(cluster, topic)
        done = subprocess.run(
            [str(program), cluster.namesrv.address, topic, str(COUNT)],
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr + cluster.broker.report()
    output: dict[str, Any] = json.loads(done.stdout)
    assert output["stored"] == 3 * COUNT, "all but the oneway ones are acknowledged"
    sent = {way: [(f"{way} 消息 {n}", way, f"{way}-{n}") for n in range(COUNT)] for way in WAYS}

    def came(consumer: str) -> Counter[tuple[str, str, str]]:
        return Counter((each["body"], each["tags"], each["keys"]) for each in output[consumer])

    assert came("all") == Counter(each for way in WAYS for each in sent[way]), done.stderr
    assert came("tagged") == Counter(sent["sync"]), done.stderr
