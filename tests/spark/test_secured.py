"""Access keys and TLS: source and sink of Spark on a broker that requires both."""

import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.support.brokers import eventually, running_broker, running_namesrv
from tianzhou.cli.commands.tls import make_certificates
from tianzhou.client.loop_thread import loop_thread

ACCOUNTS = """
accounts:
  - accessKey: pipeline
    secretKey: pipeline-secret
    topicPerms: [orders=PUB|SUB]
    groupPerms: [clerks=SUB]
"""
COUNT = 2_000


@asynccontextmanager
async def secured(folder: Path) -> AsyncGenerator[str]:
    """A broker that accepts only TLS and signed requests; yields the nameserver's address."""
    assert make_certificates(folder / "tls", ["127.0.0.1"]) == 0
    papers = {
        "tlsServerCertPath": folder / "tls" / "server.pem",
        "tlsServerKeyPath": folder / "tls" / "server.key",
    }
    accounts = folder / "conf" / "plain_acl.yml"
    accounts.parent.mkdir()
    accounts.write_text(ACCOUNTS)
    async with (
        running_namesrv(folder, tlsMode="permissive", **papers) as namesrv,
        running_broker(
            folder / "store", namesrvAddr=namesrv, tlsMode="enforcing", aclEnable="true",
            rocketmqHome=folder, **papers,
        ) as broker,
    ):  # fmt: skip
        await eventually(lambda: broker.registered_with, "registration")
        yield namesrv


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Options for access control and TLS, of source and sink."""
    folder = tmp_path_factory.mktemp("secured")
    stack = AsyncExitStack()
    namesrv = loop_thread.run(stack.enter_async_context(secured(folder)))
    yield {
        "nameServer": namesrv,
        "accessKey": "pipeline",
        "secretKey": "pipeline-secret",
        "tls": "true",
        "tlsTrusted": str(folder / "tls" / "ca.pem"),
    }
    loop_thread.run(stack.aclose())


def test_source_and_sink_work_with_access_keys_and_tls(
    spark: SparkSession, options: dict[str, str]
) -> None:
    frame = spark.range(0, COUNT, 1, 2).selectExpr("string(id) body", "concat('t', id % 3) tags")
    frame.write.format("rocketmq").options(**options, topic="orders").mode("append").save()
    reader = spark.read.format("rocketmq").options(**options, subscribe="orders", group="clerks")
    found = reader.load().where("tags = 't1'").selectExpr("cast(string(body) AS bigint) n")
    assert sorted(row.n for row in found.collect()) == list(range(1, COUNT, 3))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"secretKey": "guessed"}, "signature"),
        ({"accessKey": "stranger"}, "stranger"),
        ({"subscribe": "invoices"}, "invoices"),
        ({"tls": "false"}, "tlsTrusted need tls=true"),
    ],
)
def test_denied_requests_raise_clear_errors(
    spark: SparkSession, options: dict[str, str], changed: dict[str, str], reason: str
) -> None:
    wanted = options | {"subscribe": "orders", "group": "clerks", "requestTimeout": "2s"} | changed
    reader = spark.read.format("rocketmq").options(**wanted)
    with pytest.raises(PySparkException, match=f"(?i){re.escape(reason)}"):
        reader.load().count()


def test_a_cluster_with_tls_rejects_plain_text_connections(
    spark: SparkSession, options: dict[str, str]
) -> None:
    plain = {name: value for name, value in options.items() if not name.startswith("tls")}
    reader = spark.read.format("rocketmq").options(**plain, subscribe="orders", requestTimeout="2s")
    with pytest.raises(PySparkException, match=r"127\.0\.0\.1"):
        reader.load().count()
