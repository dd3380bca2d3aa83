"""Java, the jars of Apache RocketMQ, and our own Java programs compiled against them.

Everything fetched or built is in `.cache/apache` of the repository and is created once: a stamp
marks a complete directory, a lock file prevents two test runs from creating it concurrently. If
something is missing and cannot be fetched, `ApacheUnavailable` gives the reason in one line, and
tests are skipped with it.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.support import packages

VERSIONS = ("4.9.7", "5.5.0")
"""One version of each maintained line of RocketMQ, both complete on Maven Central."""

TOOLS_ONLY = "4.9.8"
"""The last of 4.9: its client and its tools are on Maven Central, its servers are not."""

PROXY, GRPC = "proxy", "grpc"
"""Apache's proxy 5.5.0, and the client that speaks gRPC to it."""

HERE = Path(__file__).parent
CACHE = HERE.parents[2] / ".cache" / "apache"
POM = HERE / "pom.xml"
OTHER_POMS = {
    TOOLS_ONLY: HERE / "pom-tools.xml",
    PROXY: HERE / "pom-proxy.xml",
    GRPC: HERE / "pom-grpc.xml",
}
JAVA_SOURCES = HERE / "java"
GRPC_ONLY = "ProxyShell.java"
OTHER_SOURCES = {
    TOOLS_ONLY: ("JsonProgram.java", "Scenario.java", "SendLoad.java", "Shell.java"),
    PROXY: ("Launch.java",),
    GRPC: ("JsonProgram.java", GRPC_ONLY),
}
"""Our programs that need only these jars."""

FETCH_TRIES = 3
FETCH_PAUSE_S = 5
FETCH_TIMEOUT_S = 900


class ApacheUnavailable(Exception):
    """Apache RocketMQ cannot run here; the text is the reason, in one line."""


def say(line: str) -> None:
    """Report progress; callers may replace this function."""
    sys.stderr.write(f"{line}\n")


announce: Callable[[str], None] = say


@contextmanager
def only_one_process() -> Generator[None]:
    """Lock out other test runs while something in the cache is being created."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# -- programs --------------------------------------------------------------------------------------


def find_program(name: str) -> str | None:
    """`name` under JAVA_HOME, else on the PATH."""
    home = os.environ.get("JAVA_HOME")
    if home and os.access(Path(home) / "bin" / name, os.X_OK):
        return str(Path(home) / "bin" / name)
    return shutil.which(name)


def need_program(name: str, debian_package: str) -> str:
    """The path of a program, installed first if permitted."""
    found = find_program(name)
    if found is None:
        with only_one_process():
            found = find_program(name) or install(name, debian_package)
    return found


def install(name: str, debian_package: str) -> str:
    """Install a Debian package and return the path of its program."""
    if not packages.may_install():
        raise ApacheUnavailable(f"{name} is missing, and we install it only as root on Debian")
    announce(f"apache: {name} is missing, installing {debian_package} with apt-get")
    complaints = packages.install(debian_package)
    found = find_program(name)
    if found is None:
        raise ApacheUnavailable(f"{name} is missing and apt-get failed: {last_line(complaints)}")
    return found


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"


@cache
def java() -> str:
    return need_program("java", "default-jdk-headless")


@cache
def java_release() -> int:
    """The feature release of Java: 8, 11, 17, ..."""
    shown = subprocess.run([java(), "-version"], capture_output=True, text=True, check=True).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', shown)
    if found is None:
        raise ApacheUnavailable(f"cannot tell the version of java from {last_line(shown)!r}")
    return int(found.group(1))


# -- jars ------------------------------------------------------------------------------------------


def jar_directory(version: str) -> Path:
    """The directory with all jars of a version, fetched on first use."""
    directory = CACHE / version
    stamp = directory / "complete"
    wanted = hashlib.sha256(pom_of(version).read_bytes()).hexdigest()
    if not is_stamped(stamp, wanted):
        maven = need_program("mvn", "maven")
        with only_one_process():
            if not is_stamped(stamp, wanted):
                fetch_jars(maven, version, directory)
                stamp.write_text(wanted)
    return directory


def pom_of(version: str) -> Path:
    return OTHER_POMS.get(version, POM)


def is_stamped(stamp: Path, wanted: str) -> bool:
    return stamp.exists() and stamp.read_text() == wanted


def fetch_jars(maven: str, version: str, directory: Path) -> None:
    announce(f"apache: fetching the jars of RocketMQ {version} with Maven")
    partial = directory.parent / f"{version}.partial"
    command = [
        maven, "-q", "-B", "-f", str(pom_of(version)), "dependency:copy-dependencies",
        "-DincludeScope=runtime", f"-DoutputDirectory={partial}",
        *((f"-Drocketmq.version={version}",) if version in (*VERSIONS, TOOLS_ONLY) else ()),
    ]  # fmt: skip
    problem = "never tried"
    for attempt in range(1, FETCH_TRIES + 1):
        shutil.rmtree(partial, ignore_errors=True)
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            problem = f"no end after {FETCH_TIMEOUT_S} s"
        else:
            if done.returncode == 0:
                shutil.rmtree(directory, ignore_errors=True)
                partial.rename(directory)
                return
            errors = [line for line in done.stdout.splitlines() if line.startswith("[ERROR]")]
            problem = errors[0] if errors else last_line(done.stdout + done.stderr)
        if attempt < FETCH_TRIES:
            # The usual cause is a short network failure, so retry.
            time.sleep(FETCH_PAUSE_S * attempt)
    raise ApacheUnavailable(f"Maven could not fetch RocketMQ {version}: {problem[:300]}")


# -- our programs ----------------------------------------------------------------------------------


def class_directory(version: str) -> Path:
    """Our Java programs compiled against the jars of a version.

    The directory is named by a hash of the sources, so that classes in use never change.
    """
    jars = jar_directory(version)
    names = OTHER_SOURCES.get(version)
    sources = [
        source
        for source in sorted(JAVA_SOURCES.glob("*.java"))
        if (source.name != GRPC_ONLY if names is None else source.name in names)
    ]
    digest = hashlib.sha256(f"{java_release()}".encode())
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    target = CACHE / f"{version}-classes" / digest.hexdigest()[:16]
    if not target.exists():
        compiler = need_program("javac", "default-jdk-headless")
        with only_one_process():
            if not target.exists():
                compile_sources(compiler, jars, sources, target)
    return target


def compile_sources(compiler: str, jars: Path, sources: list[Path], target: Path) -> None:
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    command = [compiler, "-nowarn", "-encoding", "UTF-8", "-cp", f"{jars}/*", "-d", str(partial)]
    done = subprocess.run(
        [*command, *map(str, sources)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise AssertionError(f"javac failed:\n{done.stdout}{done.stderr}")
    partial.rename(target)


@cache
def classpath(version: str) -> str:
    """The class path for RocketMQ and our programs."""
    return f"{class_directory(version)}{os.pathsep}{jar_directory(version)}/*"
