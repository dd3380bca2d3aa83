"""What the machines of a Spark cluster need of Tianzhou, as one file for `spark-submit`.

    tianzhou-env.tar.gz   --archives: the package, its kernel and all that they import; these
                          machines need Spark and a Python of the same version, nothing else
    tianzhou.zip          --py-files: the package alone; the kernel's pure twin serves, and these
                          machines must have what the package imports
    pipeline.py           the program to submit: `pipeline.py NAME OPTION=VALUE ...`

Everything is taken from the environment that runs this, so nothing is fetched, and the cluster
gets what was tried here. The same environment gives the same bytes.
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
"""What executors call the unpacked archive."""

DEPENDENCIES = ("msgspec", "lz4", "backports-zstd", "lark", "numpy", "pyarrow", "sqlalchemy")
"""What the rooms below `spark` and it itself import; servers and the command line need more."""
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
"""A compiled library hardly gets smaller by more effort."""


@dataclass(frozen=True, slots=True)
class Package:
    """What was written."""

    path: Path
    program: Path
    size_bytes: int
    holds: tuple[str, ...]
    """Distributions in it."""
    needs: tuple[str, ...]
    """Distributions that the machines must have."""

    @property
    def has_kernel(self) -> bool:
        return KERNEL in self.holds

    @property
    def commands(self) -> list[str]:
        """How it is used, in the folder that it is in."""
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
    """The archive for `--archives`. Raises ConfigError.

    `more` are distributions that the program needs beside ours; `without` are those that the
    machines have.
    """
    there = {_normal(name) for name in without}
    wanted = [_normal(name) for name in more]
    for name in (*there, *wanted):
        if _installed(name) is None:
            raise ConfigError(f"there is no distribution {name} in this environment")
    held = ["tianzhou", *closure((KERNEL, *DEPENDENCIES, *wanted), but=there)]
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
    return _package(path, held, sorted(there))


def write_zip(folder: Path) -> Package:
    """The zip for `--py-files`, in which nothing is compiled. Raises ConfigError."""
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


# -- what belongs to it ----------------------------------------------------------------------------


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def closure(names: Iterable[str], *, but: Collection[str] = ()) -> list[str]:
    """The named distributions and what they require, as far as it is installed.

    What is not installed was not required here: by another system or another Python.
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
    """The names in lines of Requires-Dist, without what only an extra needs."""
    for line in lines:
        match = _REQUIREMENT.match(line)
        if match is not None and not _EXTRA.search(line):
            yield _normal(match[0])


def _files(names: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """The files of some distributions, by the names that they have in a folder of packages."""
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
    """The package from where it runs: an editable installation lists no files."""
    root = Path(tianzhou.__file__).parent
    if not root.is_dir():
        raise ConfigError(f"{root} is no folder: packing needs Tianzhou installed, not in a zip")
    for source in sorted(root.rglob("*")):
        if source.is_file() and "__pycache__" not in source.parts:
            yield source.relative_to(root.parent).as_posix(), source
    for name in _DISCOVERY_MODULES:
        yield name, root.parent / name
