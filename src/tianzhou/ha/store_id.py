"""The id of a store: random, made with the store, in the file `storeId` of storePathRootDir.

Brokers keep their name and id when a disk is replaced; the id of the store shows that the log is
another one.
"""

import logging
import re
import secrets
from pathlib import Path

from tianzhou.config.files import replace_file
from tianzhou.store.files.disk import explained

log = logging.getLogger(__name__)

FILE_NAME = "storeId"
_ID = re.compile(r"[0-9a-f]{32}")


def load_store_id(root: Path) -> str:
    """The id of the store in a directory; made, and durable, at the first call.

    A damaged file gets a new id: a store that cannot prove which one it is counts as another one.
    Raises StoreError.
    """
    path = root / FILE_NAME
    try:
        known = path.read_text("ascii", "replace").strip() if path.exists() else ""
        if _ID.fullmatch(known):
            return known
        if known or path.exists():
            log.warning("%s is damaged: the store gets a new id", path)
        made = secrets.token_hex(16)
        replace_file(path, f"{made}\n".encode())
    except OSError as error:
        raise explained(error, f"read or write {path}") from error
    return made
