"""Files of the console: the address has the hash of the content, so browsers keep them for ever."""

import functools
import hashlib
import mimetypes
from pathlib import Path

from starlette.responses import Response

from tianzhou.console.web.ask import Ask
from tianzhou.console.web.refusals import NotFound

FOLDER = Path(__file__).resolve().parents[1] / "static"
_HASH_LENGTH = 12


@functools.cache
def files() -> dict[str, tuple[bytes, str, str]]:
    """Content, media type and hash, by path below the folder."""
    found: dict[str, tuple[bytes, str, str]] = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.is_file() and path.suffix in (".css", ".js", ".svg", ".png", ".ico", ".txt"):
            content = path.read_bytes()
            kind = "text/javascript" if path.suffix == ".js" else mimetypes.guess_type(path.name)[0]
            mark = hashlib.sha256(content).hexdigest()[:_HASH_LENGTH]
            found[path.relative_to(FOLDER).as_posix()] = (content, kind or "text/plain", mark)
    return found


@functools.cache
def build() -> str:
    """Changes with the files."""
    return hashlib.sha256("".join(mark for _, _, mark in files().values()).encode()).hexdigest()[:8]


def address(name: str) -> str:
    """The path of a file, with its hash."""
    return f"/static/{name}?{files()[name][2]}"


async def static_file(ask: Ask) -> Response:
    """A file below /static."""
    try:
        content, kind, mark = files()[ask.path["name"]]
    except KeyError:
        raise NotFound from None
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "ETag": f'"{mark}"'}
    if ask.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)
