"""Small files that are replaced as a whole: a reader sees the old one or the new one."""

import os
from pathlib import Path


def in_home(name: str) -> Path:
    """A path under the user's home folder, which an account without one leaves unexpanded."""
    return Path(os.path.expanduser("~"), name)  # noqa: PTH111 - Path.expanduser raises there


def replace_file(path: Path, data: bytes) -> None:
    """Make `data` the content of `path`, surviving a crash at any point. Missing folders are made.

    The mode of an existing file is kept, and a symbolic link stays one: what it points at is
    replaced. Raises OSError; then the old content is untouched.
    """
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as file:
            if target.exists():
                os.fchmod(file.fileno(), target.stat().st_mode & 0o7777)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    # The rename itself is on disk only when the folder is.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
