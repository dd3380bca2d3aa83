"""Files of the console: vendored ones are unchanged, all are served with their hash."""

import base64
import hashlib
import re
import tomllib
from typing import Any

import httpx

from tianzhou.console.web import static

VENDOR = static.FOLDER / "vendor"


def packages() -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = tomllib.loads((VENDOR / "vendor.toml").read_text())["package"]
    return listed


def test_vendored_files_are_those_of_their_packages() -> None:
    named: set[str] = set()
    for package in packages():
        assert str(package["integrity"]).startswith("sha512-")
        assert package["license"] in ("0BSD", "MIT")
        for file in package["file"]:
            content = (VENDOR / file["name"]).read_bytes()
            digest = base64.b64encode(hashlib.sha384(content).digest()).decode()
            assert digest == file["sha384"], file["name"]
            named.add(file["name"])
    assert named | {"vendor.toml"} == {path.name for path in VENDOR.iterdir()}
    assert any(name.endswith("LICENSE.txt") for name in named)


async def test_a_file_is_kept_by_browsers_under_its_hash(stranger: httpx.AsyncClient) -> None:
    page = (await stranger.get("/login")).text
    where = re.findall(r'(?:href|src)="(/static/[^"]+)"', page)
    assert len(where) == 3
    for each in where:
        answer = await stranger.get(each)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        again = await stranger.get(each, headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        digest = hashlib.sha256(answer.content).hexdigest()
        assert each.endswith(f"?{digest[:12]}")


async def test_nothing_else_is_served_as_a_file(stranger: httpx.AsyncClient) -> None:
    for name in ("../app.py", "..%2fapp.py", "%2e%2e/tables.py", "vendor/vendor.toml",
                 "/etc/passwd", "vendor/../../app.py", "console.css/", ""):  # fmt: skip
        answer = await stranger.get(f"/static/{name}")
        assert answer.status_code in (303, 404), name


def test_styles_and_scripts_ask_no_other_site() -> None:
    for path in [*static.FOLDER.glob("*.css"), *static.FOLDER.glob("*.js"),
                 *(static.FOLDER.parent / "templates").glob("*.html")]:  # fmt: skip
        text = path.read_text("utf-8")
        assert not re.findall(r"(?:https?:)?//[\w-]+\.\w+", text), path
        assert "@import" not in text, path


def test_the_package_has_the_files() -> None:
    names = set(static.files())
    assert {"console.css", "console.js", "icon.svg", "vendor/htmx.min.js"} <= names
