"""Tianzhou as one file for the machines of a Spark cluster (`spark-submit`).

    tianzhou-env.tar.gz   --archives: the package, its kernel and all dependencies; the machines
                          need only Spark and a Python of the same version
    tianzhou.zip          --py-files: the package alone, in pure Python; the machines need its
                          dependencies
    pipeline.py           the program to submit: `pipeline.py NAME OPTION=VALUE ...`

All files come from the environment that runs this: nothing is downloaded, and the cluster gets the
tested versions. The same environment produces the same bytes.
"""

import gzip
import io
import re
import sys
import tarfile
import zipfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import tianzhou
from tianzhou.errors import ConfigError

ARCHIVE, ZIP, PROGRAM = "tianzhou-env.tar.gz", "tianzhou.zip", "pipeline.py"
FOLDER = "tianzhou-env"
"""The folder into which executors unpack the archive."""

DEPENDENCIES = ("msgspec", "lz4", "backports-zstd", "lark", "numpy", "pyarrow", "sqlalchemy")
"""Dependencies of `spark` and the packages below it; servers and the command line need more."""
KERNEL = "tianzhou-kernel"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

_PROGRAM_TEXT = '''"""A standard pipeline, for spark-submit: pipeline.py NAME OPTION=VALUE ..."""

import sys

from tianzhou.spark.pipelines.__main__ import main

sys.exit(main(sys.argv[1:]))
'''
_DISCOVERY_MODULES = ("pyspark_rocketmq.py", "pyspark_rocketmq_store.py")
_EXCLUDED_FOLDERS = frozenset({"__pycache__", "tests", "include"})
_REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r";.*\bextra\s*==")
_LEVEL = 1
"""Higher levels hardly reduce compiled libraries."""


@dataclass(frozen=True, slots=True)
class Package:
    """A written package."""

    path: Path
    program: Path
    size_bytes: int
    holds: tuple[str, ...]
    """Distributions that it contains."""
    needs: tuple[str, ...]
    """Distributions that the machines must have."""

    @property
    def has_kernel(self) -> bool:
        return KERNEL in self.holds

    @property
    def commands(self) -> list[str]:
        """The shell commands that use it, run in its folder."""
        if self.path.name == ZIP:
            return [f"spark-submit --py-files {ZIP} {PROGRAM} NAME OPTION=VALUE ..."]
        return [
            f"mkdir -p {FOLDER} && tar -xzf {ARCHIVE} -C {FOLDER}",
            f"PYSPARK_PYTHON=python{PYTHON} PYTHONPATH={FOLDER} spark-submit "
            f"--archives {ARCHIVE}#{FOLDER} --conf spark.executorEnv.PYTHONPATH={FOLDER} "
            f"{PROGRAM} NAME OPTION=VALUE ...",
        ]


def write_archive(
    folder: Path, *, more: Iterable[str] = (), without: Iterable[str] = ()
) -> Package:
    """Write the archive for `--archives`. Raises ConfigError.

    `more` are additional distributions for the program; `without` are those that the machines have.
    """
    provided = {_normal(name) for name in without}
    wanted = [_normal(name) for name in more]
    for name in (*provided, *wanted):
        if _installed(name) is None:
            raise ConfigError(f"there is no distribution {name} in this environment")
    held = ["tianzhou", *closure((KERNEL, *DEPENDENCIES, *wanted), but=provided)]
    path = _prepare(folder) / ARCHIVE
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for name, source in _files(held):
            content = source.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    return _package(path, held, sorted(provided))


def write_zip(folder: Path) -> Package:
    """Write the pure-Python zip for `--py-files`. Raises ConfigError."""
    path = _prepare(folder) / ZIP
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, source in _files(["tianzhou"]):
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            made.writestr(entry, source.read_bytes())
    return _package(path, ["tianzhou"], closure(DEPENDENCIES))


def _prepare(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PROGRAM).write_text(_PROGRAM_TEXT)
    except OSError as e:
        raise ConfigError(f"{folder}: cannot be written to: {e}") from e
    return folder


def _package(path: Path, held: Iterable[str], needed: Iterable[str]) -> Package:
    return Package(
        path, path.parent / PROGRAM, path.stat().st_size, tuple(sorted(held)), tuple(needed)
    )


# -- contents --------------------------------------------------------------------------------------


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def closure(names: Iterable[str], *, but: Collection[str] = ()) -> list[str]:
    """The named distributions and their installed requirements, recursively.

    A requirement that is not installed is for another system or Python version.
    """
    waiting = list(names)
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        dist = None if name in found or name in but else _installed(name)
        if dist is not None:
            found.add(name)
            waiting += requirements(dist.requires or ())
    return sorted(found)


def requirements(lines: Iterable[str]) -> Iterator[str]:
    """The names in lines of Requires-Dist, without those of extras."""
    for line in lines:
        match = _REQUIREMENT.match(line)
        if match is not None and not _EXTRA.search(line):
            yield _normal(match[0])


def _files(names: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """The files of distributions, with their paths relative to site-packages."""
    for name in sorted(names):
        if name == "tianzhou":
            yield from _own_files()
            continue
        dist = distribution(name)
        for file in sorted(dist.files or (), key=str):
            is_wanted = not _EXCLUDED_FOLDERS & set(file.parts) and ".." not in file.parts
            source = Path(str(dist.locate_file(file)))
            if is_wanted and source.is_file():
                yield file.as_posix(), source


def _own_files() -> Iterator[tuple[str, Path]]:
    """The files of the running package: an editable installation lists none."""
    root = Path(tianzhou.__file__).parent
    if not root.is_dir():
        raise ConfigError(f"{root} is not a folder: packaging needs Tianzhou installed, not zipped")
    for source in sorted(root.rglob("*")):
        if source.is_file() and "__pycache__" not in source.parts:
            yield source.relative_to(root.parent).as_posix(), source
    for name in _DISCOVERY_MODULES:
        yield name, root.parent / name
