"""What Spark's Python processes do before their first task."""

import gc
import subprocess
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from tianzhou.spark import worker


@pytest.mark.parametrize("name", ["pyspark.daemon", "pyspark.sql.worker.plan_data_source_read"])
def test_a_process_of_spark_settles_in_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec(name, None)
    frozen: list[int] = []
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(worker, "_settled", False)
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    worker.settle_in()
    worker.settle_in()
    assert frozen == [1]


@pytest.mark.parametrize("given", [["-c"], ["-m", "timeit", "-n1", "-r1"]])
def test_a_users_program_is_left_as_it_is(given: list[str]) -> None:
    program = "import gc; from tianzhou.spark.worker import settle_in; settle_in(); "
    program += "assert gc.get_freeze_count() == 0"
    subprocess.run([sys.executable, *given, program], check=True, capture_output=True)
