"""The package for Spark clusters contains all imports and nothing specific to this machine."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tianzhou.errors import ConfigError
from tianzhou.spark import cluster_package

LARGE = ("numpy", "pyarrow", "sqlalchemy")


def test_an_archive_contains_all_imports_of_the_package(tmp_path: Path) -> None:
    made = cluster_package.write_archive(tmp_path / "ship", without=LARGE)
    assert made.needs == LARGE
    assert {"tianzhou", "msgspec", "lz4", "lark"} <= set(made.holds)
    assert not {"pyspark", *LARGE} & set(made.holds)
    with tarfile.open(made.path) as tar:
        names = tar.getnames()
    assert {"tianzhou/spark/source/source.py", "tianzhou/py.typed", "pyspark_rocketmq.py"} <= set(
        names
    )
    assert "msgspec/__init__.py" in names
    assert any(name.startswith("tianzhou_kernel/") for name in names) == made.has_kernel
    assert not [name for name in names if name.startswith(("/", "..")) or "__pycache__" in name]


def test_the_same_environment_produces_the_same_bytes(tmp_path: Path) -> None:
    one, two = (cluster_package.write_archive(tmp_path / name, without=LARGE).path for name in "ab")
    assert one.read_bytes() == two.read_bytes()
    one, two = (cluster_package.write_zip(tmp_path / name).path for name in "ab")
    assert one.read_bytes() == two.read_bytes()


def test_a_zip_contains_the_package_alone_and_can_be_imported(tmp_path: Path) -> None:
    made = cluster_package.write_zip(tmp_path)
    assert (made.holds, made.has_kernel) == (("tianzhou",), False)
    assert {"msgspec", "numpy", "pyarrow"} <= set(made.needs)
    with zipfile.ZipFile(made.path) as packed:
        assert not [name for name in packed.namelist() if name.endswith((".so", ".pyc"))]
    program = [sys.executable, str(made.program), "topic-stats", "nameServer=a:1", "dais=today"]
    ran = subprocess.run(
        program, env={"PYTHONPATH": str(made.path)}, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, "did you mean days" in ran.stderr) == (2, True), ran.stderr


@pytest.mark.parametrize("given", [{"more": ["no-such-thing"]}, {"without": ["no-such-thing"]}])
def test_an_unknown_distribution_is_rejected(given: dict[str, list[str]], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no distribution no-such-thing"):
        cluster_package.write_archive(tmp_path, **given)


def test_requirements_of_extras_are_left_out() -> None:
    lines = [
        "Typing_Extensions>=4", 'greenlet>=1; extra == "asyncio"', "a.b[x,y] (>=2)",
        'importlib-metadata; python_version < "3.8"', "mypy>=0.9; extra == 'mypy'",
    ]  # fmt: skip
    found = ["typing-extensions", "a-b", "importlib-metadata"]
    assert list(cluster_package.requirements(lines)) == found


def test_an_unwritable_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written to"):
        cluster_package.write_zip(tmp_path / "file")
