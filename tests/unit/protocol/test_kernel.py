"""Which codec is used, and why; each case in a new interpreter, since the choice is made once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tianzhou.protocol.kernel import CONTRACT

REPORT = "from tianzhou.protocol import kernel; print(kernel.native is None, kernel.WHY_PURE)"


def report(directory: Path, **environment: str) -> str:
    """The choice and its reason if `directory` is first on the module path."""
    clean = {name: value for name, value in os.environ.items() if name != "TIANZHOU_PURE"}
    done = subprocess.run(
        [sys.executable, "-c", REPORT],
        env={**clean, "PYTHONPATH": str(directory), **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    return done.stdout.strip()


def pretend(directory: Path, source: str) -> Path:
    (directory / "tianzhou_kernel.py").write_text(source)
    return directory


def test_the_variable_switches_the_kernel_off(tmp_path: Path) -> None:
    kernel = pretend(tmp_path, f"CONTRACT = {CONTRACT}")
    assert report(kernel, TIANZHOU_PURE="1") == "True switched off by TIANZHOU_PURE"


@pytest.mark.parametrize("value", ["", "0"])
def test_an_empty_variable_or_0_leaves_the_kernel_on(tmp_path: Path, value: str) -> None:
    assert report(pretend(tmp_path, f"CONTRACT = {CONTRACT}"), TIANZHOU_PURE=value) == "False None"


def test_a_kernel_of_another_contract_is_not_used(tmp_path: Path) -> None:
    said = report(pretend(tmp_path, "CONTRACT = 0"))
    assert said == f"True the kernel has contract 0, {CONTRACT} is needed: build it again"


def test_the_reason_of_a_kernel_that_cannot_be_loaded_is_reported(tmp_path: Path) -> None:
    said = report(pretend(tmp_path, "raise ImportError('wrong architecture')"))
    assert said == "True wrong architecture"
