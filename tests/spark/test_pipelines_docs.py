"""The three pipelines of docs/pipelines.md, run unchanged."""

import json
import re
import sqlite3
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.spark.reading import stored
from tianzhou.client import Message
from tianzhou.client.sync import Producer
from tianzhou.testing import Cluster

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pipelines.md"


def programs() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def run(program: str, cluster: Cluster) -> None:
    """A program of the page, in the folder of the test and on its cluster."""
    text = program.replace("127.0.0.1:9876", cluster.namesrv_address)
    exec(compile(text, str(PAGE), "exec"), {"__name__": "__main__"})  # noqa: S102 - our own page


def test_programs_of_the_page_produce_the_documented_results(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_tag, large, day = programs()
    assert all(len(each.strip().splitlines()) <= 16 for each in (by_tag, large, day))
    monkeypatch.chdir(tmp_path)
    folder = str(tmp_path)
    topics = {"orders": 2, "payments": 2, "large-payments": 2}
    with Cluster(topics=topics) as cluster:
        with Producer("docs", namesrv=cluster.namesrv_address) as producer:
            producer.send_many(
                Message("orders", f"{n}", tags="paid" if n % 3 else "new") for n in range(30)
            )
            producer.send_many(
                Message.json("payments", {"id": f"p{n}", "amount": n * 100.0}) for n in range(20)
            )
        for _ in range(2):
            run(_in_folder(by_tag, folder), cluster)
            run(_in_folder(large, folder), cluster)
        run(_in_folder(day, folder), cluster)
        found = stored(cluster, "large-payments")
    rows = sqlite3.connect(tmp_path / "orders.db").execute("SELECT tag, n FROM tags").fetchall()
    assert sorted(rows) == [("new", 10), ("paid", 20)]
    assert sorted(json.loads(each.body)["amount"] for each in found) == [
        n * 100.0 for n in range(11, 20)
    ]
    assert all(each.keys[0] == json.loads(each.body)["id"] for each in found)
    counts = {row.topic: row[2] for row in spark.read.parquet(f"{folder}/largest").collect()}
    assert len(counts) == 2


def _in_folder(program: str, folder: str) -> str:
    """Spark's own paths do not follow a change of the working directory."""
    for name in ("checkpoint/", "largest"):
        program = program.replace(f'"{name}', f'"{folder}/{name}')
    return program.replace("sqlite:///ledger", f"sqlite:///{folder}/ledger")
