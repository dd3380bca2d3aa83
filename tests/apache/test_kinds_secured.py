"""Stock clients with an account on a broker with access control: their requests are permitted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apache.test_broker_compat import Cluster, our_cluster
from tests.apache.test_kinds_transactions import COMMIT, ROLLBACK, UNKNOWN, Stage
from tests.support.apache.servers import VERSIONS, Shell, java_shell, wait_until
from tests.support.gate import EACH_VERSION

pytestmark = pytest.mark.apache

SECRET_KEY = "a-secret-of-seven"  # noqa: S105 - of a test
ACCOUNTS = """
accounts:
  - accessKey: stock-client
    secretKey: {secret}
    topicPerms: [DefaultCluster_REPLY_TOPIC=PUB{topics}]
    groupPerms: [{groups}]
"""


class SignedStage(Stage):
    """Clients that sign."""

    def start(self, verb: str, stop_verb: str, name: str, **options: Any) -> str:  # noqa: ANN401 - JSON
        signed = {"account": "stock-client", "secret": SECRET_KEY}
        return super().start(verb, stop_verb, name, **signed, **options)


def topics_of(version: str) -> list[str]:
    return [f"secured-{version[0]}-{each}" for each in ("plain", "questions")]


@pytest.fixture(scope="module")
def cluster(apache: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    file: Path = tmp_path_factory.mktemp("acl") / "plain_acl.yml"
    topics = [topic for version in VERSIONS for topic in topics_of(version)]
    file.write_text(
        ACCOUNTS.format(
            secret=SECRET_KEY,
            topics="".join(f", {topic}=PUB|SUB" for topic in topics),
            groups=", ".join(f"{topic}-g=SUB" for topic in topics),
        )
    )
    settings: dict[str, object] = {
        "aclEnable": "true", "aclFile": file, "aclFolder": file.parent / "none",
        "transactionTimeOut": 1000, "transactionCheckInterval": 500, "transactionCheckMax": 200,
        "messageDelayLevel": "1s 1s 1s 1s", "traceTopicEnable": "true",
    }  # fmt: skip
    with our_cluster(**settings) as it:
        yield it


@pytest.fixture(scope="module", params=EACH_VERSION)
def shell(request: pytest.FixtureRequest, apache: None) -> Iterator[Shell]:
    with java_shell(request.param, "KindsShell") as it:
        yield it


def test_stock_clients_can_use_all_permissions_of_their_account(
    cluster: Cluster, shell: Shell
) -> None:
    plain, questions = (
        SignedStage(cluster, shell, topic, []) for topic in topics_of(shell.version)
    )
    try:
        sender = plain.producer("p", trace=True)
        plain.send(sender, ["sent"])
        consumer = plain.consumer("c", "later", trace=True)
        plain.wait_for(consumer, ["sent"])
        producer = plain.transactions("t")
        plain.transact(producer, "committed", COMMIT, ROLLBACK, immune_s=300)
        plain.transact(producer, "committed by a check", UNKNOWN, COMMIT)
        plain.wait_for(consumer, ["committed", "committed by a check"])
        wanted = {("sent", 1), ("committed", 1), ("committed by a check", 1)}

        def given_back() -> set[tuple[str, int]]:
            seen = shell.consumed(consumer)
            return {(each["body"], each["reconsumeTimes"]) for each in seen}

        wait_until(
            lambda: wanted <= given_back(), "the messages again", timeout_s=90, seen=given_back
        )
        replier = questions.producer("replier")
        questions.send(replier, ["no question"])
        asker = questions.producer("asker")
        questions.consumer("c", "reply", producer=replier)
        reply = shell.ask("request", name=asker, topic=questions.topic, body="one")
        assert reply == "re: one"
    finally:
        questions.close()
        plain.close()
