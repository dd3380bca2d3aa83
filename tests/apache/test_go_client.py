"""Our broker with the stock Go client, an independent implementation of the protocol.

Without Go or its modules the test is skipped, with the reason.
"""

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.apache.test_broker_compat import create_topic, our_cluster
from tests.support.apache.go_client import built_program

pytestmark = pytest.mark.apache

RUN_TIMEOUT_S = 120
COUNT = 20
WAYS = ("sync", "async", "oneway", "batch")


@pytest.fixture(scope="module")
def program() -> Path:
    return built_program()


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
