"""Initialization of Spark's Python workers."""

import gc
import subprocess
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from tianzhou.spark import worker_tuning


@pytest.mark.parametrize("name", ["pyspark.daemon", "pyspark.sql.worker.plan_data_source_read"])
def test_a_worker_process_is_initialized_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec(name, None)
    frozen: list[int] = []
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(worker_tuning, "_initialized", False)
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    worker_tuning.init_worker()
    worker_tuning.init_worker()
    assert frozen == [1]


@pytest.mark.parametrize("given", [["-c"], ["-m", "timeit", "-n1", "-r1"]])
def test_the_program_of_a_user_is_not_changed(given: list[str]) -> None:
    program = "import gc; from tianzhou.spark.worker_tuning import init_worker; init_worker(); "
    program += "assert gc.get_freeze_count() == 0"
    subprocess.run([sys.executable, *given, program], check=True, capture_output=True)


_TASK_ARRIVES = """
import pickle, socket, sys, tempfile
from importlib.machinery import ModuleSpec

sys.modules["__main__"].__spec__ = ModuleSpec(sys.argv[1], None)
listening = socket.create_server(("127.0.0.1", 0))
ours = socket.create_connection(listening.getsockname())
theirs, _ = listening.accept()
others = [*socket.socketpair(), tempfile.TemporaryFile()]
arrived = pickle.loads(pickle.dumps(Task(7)))
assert arrived.number == 7
nodelay = [each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in (ours, theirs)]
ours.sendall(b"still open")
assert theirs.recv(100) == b"still open"
others[0].sendall(b"this too")
assert others[1].recv(100) == b"this too"
others[2].write(b"and this")
print(nodelay)
"""


@pytest.mark.parametrize(
    ("main", "nodelay"), [("pyspark.daemon", "[1, 1]"), ("a.users.program", "[0, 0]")]
)
def test_receiving_a_task_disables_tcp_delays(main: str, nodelay: str) -> None:
    program = f"""
from tianzhou.spark.worker_tuning import TaskPayload

class Task(TaskPayload):
    def __init__(self, number):
        self.number = number
{_TASK_ARRIVES}"""
    done = subprocess.run(
        [sys.executable, "-c", program, main], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == nodelay
