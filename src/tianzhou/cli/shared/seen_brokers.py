"""The brokers that `doctor` and `cluster watch` have seen, saved between runs.

    ~/.config/tianzhou/seen/127.0.0.1_9876.json
    {"namesrv": "127.0.0.1:9876", "brokers": [{"cluster": "c", "name": "broker-a", ...}]}

One file per list of nameservers, in the folder `seen` beside the contexts, replaced atomically. At
most `FILES_MAX` are retained; the least recently used are deleted first. A file that cannot be read
or written is a warning; the command continues.
"""

import hashlib
import re
from contextlib import suppress
from pathlib import Path

import msgspec

from tianzhou.admin.doctor.presence import BrokerKey, KnownBroker
from tianzhou.config.files import replace_file

FILES_MAX = 64
_NAME_MAX = 80
_SAVE_AGAIN_MS = 60_000
"""How often the time at which a broker was seen is saved."""


class _File(msgspec.Struct, frozen=True):
    namesrv: str
    brokers: list[KnownBroker]


class SeenBrokers:
    """The saved brokers of one cluster."""

    def __init__(self, folder: Path, namesrvs: list[str]) -> None:
        """`folder` is the folder of the contexts file."""
        self._namesrv = ";".join(sorted(namesrvs))
        self._path = folder / "seen" / f"{_file_name(self._namesrv)}.json"
        self._saved: dict[BrokerKey, KnownBroker] = {}

    def load(self) -> tuple[dict[BrokerKey, KnownBroker], str | None]:
        """The saved brokers, and a warning if the file cannot be read."""
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=_File)
        except FileNotFoundError:
            return {}, None
        except (OSError, msgspec.DecodeError) as e:
            return {}, f"{self._path} cannot be read, brokers seen earlier are not checked: {e}"
        self._saved = {each.key: each for each in found.brokers}
        return dict(self._saved), None

    def save(self, known: dict[BrokerKey, KnownBroker]) -> str | None:
        """Save the known brokers if they changed; returns a warning if that fails."""
        if not self._is_news(known):
            return None
        brokers = [known[key] for key in sorted(known)]
        data = msgspec.json.format(msgspec.json.encode(_File(self._namesrv, brokers)), indent=2)
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._path, data + b"\n")
            _drop_oldest(self._path.parent)
        except OSError as e:
            reason = e.strerror or e
            return f"{self._path} cannot be written, the next run will not know them: {reason}"
        self._saved = dict(known)
        return None

    def _is_news(self, known: dict[BrokerKey, KnownBroker]) -> bool:
        return known.keys() != self._saved.keys() or any(
            each.address != self._saved[key].address
            or each.seen_ms - self._saved[key].seen_ms >= _SAVE_AGAIN_MS
            for key, each in known.items()
        )


def _file_name(namesrv: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9.-]+", "_", namesrv)
    if len(plain) <= _NAME_MAX:
        return plain
    return f"{plain[:40]}-{hashlib.sha256(namesrv.encode()).hexdigest()[:16]}"


def _drop_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.json"), key=_modified_s)
    for old in files[:-FILES_MAX]:
        with suppress(OSError):
            old.unlink()


def _modified_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
