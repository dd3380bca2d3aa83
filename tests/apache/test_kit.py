"""The Apache test kit: it reports why it cannot run and what it waited for, and cleans up."""

import os
from pathlib import Path

import pytest

from tests.support.apache import jars
from tests.support.apache.servers import ApacheUnavailable, apache_namesrv, wait_until

pytestmark = pytest.mark.apache


def test_missing_java_is_a_reason_to_skip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ApacheUnavailable, match="java is missing"):
        jars.need_program("java", "default-jdk-headless")


def test_java_home_comes_before_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert jars.find_program("java") == str(program)


def test_failed_fetch_is_a_reason_to_skip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho '[ERROR] no such host'; exit 1\n")
    maven.chmod(0o755)
    said: list[str] = []
    monkeypatch.setattr(jars, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(jars, "FETCH_PAUSE_S", 0)
    monkeypatch.setattr(jars, "announce", said.append)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ApacheUnavailable, match=r"could not fetch RocketMQ 4\.9\.7.*no such host"):
        jars.jar_directory("4.9.7")
    assert said == ["apache: fetching the jars of RocketMQ 4.9.7 with Maven"]
    assert not (tmp_path / "cache" / "4.9.7").exists()


def test_a_timed_out_wait_reports_the_last_value() -> None:
    with pytest.raises(AssertionError, match=r"the moon: not within 0\.1 s; last seen: clouds"):
        wait_until(lambda: False, "the moon", timeout_s=0.1, seen=lambda: "clouds")


def test_a_server_ends_with_its_parent_process(apache: None) -> None:
    with apache_namesrv("4.9.7", graceful=False) as namesrv:
        assert namesrv.process.stdin is not None
        namesrv.process.stdin.close()
        assert namesrv.process.wait(timeout=120) == 3, namesrv.report()
