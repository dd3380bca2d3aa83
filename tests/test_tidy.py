"""Tidiness as a test: names, docstrings, leftovers, and documents that keep up with the code."""

import ast
import re
import subprocess
import tomllib
from collections import Counter
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


CONTRIBUTING = ROOT / "CONTRIBUTING.md"
PAGES = [ROOT / "README.md", CONTRIBUTING, *sorted((ROOT / "docs").rglob("*.md"))]


def test_links_between_documents_exist() -> None:
    broken = [
        f"{page.relative_to(ROOT)} -> {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert not broken


# -- files named in pages --------------------------------------------------------------------------

PACKAGE = ROOT / "src" / "tianzhou"
FOLDERS = {"src", "tests", "kernel", "bench", "tools"} | {
    path.name for path in PACKAGE.iterdir() if path.is_dir()
}
FILES_OF_A_STORE = {"config/timercheck"}


def paths_named_in(page: Path) -> list[str]:
    named = re.findall(r"`([\w./-]+)`", page.read_text())
    return [each for each in named if "/" in each and each.split("/")[0] in FOLDERS]


def test_every_file_named_in_a_page_exists() -> None:
    missing = [
        f"{page.relative_to(ROOT)}: {path}"
        for page in PAGES
        for path in paths_named_in(page)
        if path not in FILES_OF_A_STORE
        and not any(
            (base / f"{path}{end}").exists() for base in (ROOT, PACKAGE) for end in ("", ".py")
        )
    ]
    assert not missing


def test_every_lock_named_in_threads_md_exists() -> None:
    named = re.findall(r"`([A-Z]\w+)\.(_\w+)`", (ROOT / "docs" / "threads.md").read_text())
    assert named
    texts = [path.read_text() for path in SOURCES]
    missing = [
        f"{owner}.{lock}"
        for owner, lock in named
        if not any(f"class {owner}" in text and re.search(rf"\b{lock}\b", text) for text in texts)
    ]
    assert not missing


def test_a_request_is_followed_through_at_most_eight_files() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    lists = {part.split("\n")[0]: re.findall(r"^\d+\. `(.*?)`", part, re.M) for part in sections}
    paths = {title: files for title, files in lists.items() if files}
    assert len(paths) >= 8
    assert not {title: files for title, files in paths.items() if len(files) > 8}
    assert all(
        (ROOT / each).exists() or (PACKAGE / each).exists() for f in paths.values() for each in f
    )


def test_every_file_with_tests_outside_the_gate_has_its_reason() -> None:
    rows = re.findall(r"^\| `(tests/\S+\.py)` \| .+ \| .+ \|$", CONTRIBUTING.read_text(), re.M)
    marks = re.compile(r"mark\.full\b|\bEACH_(VERSION|TOOL|BACKEND|CODEC)\b|\bgated\(|\bsome_of\(")
    outside = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path.parent.name != "support" and path != Path(__file__).resolve()
        and marks.search(path.read_text())
    ]  # fmt: skip
    assert sorted(rows) == outside


# -- sizes -----------------------------------------------------------------------------------------

FOLDER_FILES_MAX = 20
FILE_LINES_ALLOWED = 500
FOLDERS_ALLOWED: dict[str, int] = {}
"""Folders with more files, and how many; entries may only go."""
FILES_WITHOUT_REASON_MAX = 0
"""Files over the limit whose head does not say why; may only fall."""


def source_files() -> list[Path]:
    kernel = (ROOT / "kernel" / "src").rglob("*.rs")
    return [path for path in (*SOURCES, *sorted(kernel)) if path.name != "__init__.py"]


def test_no_folder_has_too_many_files() -> None:
    counts = Counter(str(path.parent.relative_to(ROOT)) for path in source_files())
    allowed = {folder: FOLDERS_ALLOWED.get(folder, FOLDER_FILES_MAX) for folder in counts}
    assert not {folder: count for folder, count in counts.items() if count > allowed[folder]}


def test_a_long_file_says_why_in_its_head() -> None:
    texts = {path.relative_to(ROOT): path.read_text() for path in source_files()}
    long = {path: text for path, text in texts.items() if text.count("\n") > FILE_LINES_ALLOWED}
    silent = [
        str(path) for path, text in long.items()
        if not re.search(r"^(//! )?Over 500 lines: \w", text[:4000], re.MULTILINE)
    ]  # fmt: skip
    assert len(silent) <= FILES_WITHOUT_REASON_MAX, silent


# -- words -----------------------------------------------------------------------------------------

ALLOWED_WORDS: dict[str, int] = {
    "whoever": 0, "whom": 0, "nobody": 0, "somebody": 0, "someone": 0, "anybody": 0,
    "everybody": 0, "him": 0, "told": 9, "twin": 0, "vouch": 0, "vain": 0, "let_go": 0,
    "courier": 0, "turnstile": 0, "vigil": 0, "lookout": 0, "betterment": 0, "hotpath": 0,
    "intake": 0, "lending": 0, "switchboard": 0, "pile": 0, "piles": 0, "pump": 0, "doubt": 0,
    "doubts": 0, "odd": 3, "door": 0, "room": 62, "mend": 0, "soon": 24,
}  # fmt: skip
"""Words that hide more than they say, and how often each may stand in source and pages.

The numbers may only fall: use the exact term (docs/glossary.md) instead of raising one.
"""


def test_words_that_hide_their_meaning_become_fewer() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    text = "\n".join(path.read_text().lower() for path in (*source_files(), *pages))
    counts = {word: len(re.findall(rf"(?<![a-z]){word}(?![a-z])", text)) for word in ALLOWED_WORDS}
    over = {word: n for word, n in counts.items() if n > ALLOWED_WORDS[word]}
    assert not over, f"allowed: { {word: ALLOWED_WORDS[word] for word in over} }"
