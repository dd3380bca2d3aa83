"""The package works where Spark is not installed, as in the console."""

import subprocess
import sys
from pathlib import Path

from tianzhou import monitor

MODULES = sorted(path.stem for path in Path(monitor.__path__[0]).glob("[a-z]*.py"))


def test_every_module_is_importable_without_spark() -> None:
    program = (
        "import importlib, sys\n"
        "for name in ('pyspark', 'pyarrow', 'py4j', 'numpy'):\n"
        "    sys.modules[name] = None\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module('tianzhou.monitor.' + name)\n"
    )
    assert {"database", "rules", "rounds", "tables"} <= set(MODULES)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *MODULES], capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
