"""Tidiness as a test: names, docstrings, leftovers, and documents that keep up with the code."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
JAVA_ENDINGS = (
    "Manager", "Service", "Impl", "Factory", "Helper", "Util", "Utils", "Wrapper",
)  # fmt: skip
FILE_LINES_MAX = 720


def tracked_text_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode != 0:
        pytest.skip("not a git checkout, so there is no list of files to look at")
    paths = [ROOT / name for name in listed.stdout.splitlines()]
    return [path for path in paths if path.is_file() and b"\0" not in path.read_bytes()[:4096]]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_source_file_is_tidy(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module starts with what it is"
    classes = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    named_like_java = [
        name for name in classes if name.endswith(JAVA_ENDINGS) or name.startswith("Abstract")
    ]
    assert not named_like_java
    assert not re.search(r"\b(TODO|FIXME|HACK)\b|NotImplementedError", text)
    assert text.count("\n") <= FILE_LINES_MAX, "two subjects are two files"
    assert not re.search(r"^\s*from tianzhou import", text, re.MULTILINE), "name the module"


def test_no_machine_paths_or_registry_hosts() -> None:
    paths_of_a_machine = re.compile(r"(?<![\w.])/(?:work|farm|root|home/[a-z]+)/")
    registry_hosts = re.compile(
        r"pypi\.org|files\.pythonhosted|repo1?\.maven|deb\.debian\.org|registry\.npmjs|static\.crates"
    )
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked_text_files()
        if path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if paths_of_a_machine.search(line) or registry_hosts.search(line)
    ]
    assert not found


def packages_asked_for() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted: list[str] = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        wanted += extra
    return {re.split(r"[\[<>=; ]", requirement)[0] for requirement in wanted} - {"tianzhou"}


def test_every_dependency_has_a_fixed_version_here() -> None:
    """A release of somebody else's must not decide whether these tests pass."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert not [line for line in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", line)]
    fixed = {line.split("==")[0].lower().replace("_", "-") for line in pins}
    assert not {name for name in packages_asked_for() if name.lower() not in fixed}


def test_every_dependency_has_its_reason() -> None:
    names = packages_asked_for()
    crate = tomllib.loads((ROOT / "kernel" / "Cargo.toml").read_text())
    names |= set(crate["dependencies"])
    documented = (ROOT / "docs" / "dependencies.md").read_text()
    assert not {name for name in names if f"`{name}`" not in documented}


def test_every_make_target_is_explained() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (help .*)$", makefile, re.MULTILINE)
    assert not [name for name in phony.split() if not re.search(rf"^{name}:.*## ", makefile, re.M)]


def test_make_runs_every_folder_of_tests() -> None:
    parts = re.findall(r"^TESTS_\w+ *:= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    run = set(re.findall(r"tests/(\w+)", " ".join(parts)))
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")} - {ROOT / "tests"}
    assert {folder.relative_to(ROOT / "tests").parts[0] for folder in folders} <= run


def test_links_between_documents_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)} -> {target}"
        for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert not broken
