"""Atomic replacement of small files: a reader sees the old content or the new content."""

import contextlib
import os
import stat
from pathlib import Path

PRIVATE = 0o600
"""The mode of a file that holds secrets: only its owner can read it."""
_USUAL = 0o666
"""Minus the umask of the process."""


def in_home(name: str) -> Path:
    """A path in the user's home folder; "~" stays if the account has none."""
    return Path(os.path.expanduser("~"), name)  # noqa: PTH111 - Path.expanduser raises there


def replace_file(
    path: Path, data: bytes, *, new_mode: int = _USUAL, mode: int | None = None
) -> None:
    """Replace the content of `path`, crash-safe. Missing folders are created.

    The owner and the mode of an existing file stay, unless `mode` is given; a new file gets
    `new_mode`. The target of a symbolic link is replaced. Raises OSError; then the old content is
    unchanged.
    """
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    draft.unlink(missing_ok=True)
    before = target.stat() if target.exists() else None
    # No other user may open the draft before it has the mode of the old file.
    first_mode = PRIVATE if before is not None else mode or new_mode
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, first_mode)
        with os.fdopen(descriptor, "wb") as file:
            if before is not None and os.name == "posix":
                _keep_owner_and_mode(descriptor, before)
                if mode is not None:
                    os.fchmod(descriptor, mode)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        draft.replace(target)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _keep_owner_and_mode(descriptor: int, before: os.stat_result) -> None:
    mode = stat.S_IMODE(before.st_mode)
    now = os.fstat(descriptor)
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        # Only root may change the owner; members of a group may set that group.
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, -1, before.st_gid)
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, before.st_uid, -1)
        if os.fstat(descriptor).st_gid != before.st_gid:
            mode &= ~stat.S_IRWXG  # it was granted to another group
    os.fchmod(descriptor, mode)


def _sync_folder(folder: Path) -> None:
    # The rename is durable after an fsync of the folder. Tools also run on Windows.
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
