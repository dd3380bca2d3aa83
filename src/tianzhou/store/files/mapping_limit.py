"""The limit on mapped queue files."""

import threading

from tianzhou.store.files.mapped_file import MappedFile


class MappingLimit:
    """Limits the number of mapped queue files by unmapping unused ones.

    Linux allows 65,530 mappings a process, and each holds a file descriptor.
    """

    __slots__ = ("_changing", "_files", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._changing = threading.Lock()
        self._files: list[MappedFile] = []

    def mapped(self, file: MappedFile) -> None:
        """Called for each new mapping."""
        with self._changing:
            self._files.append(file)
            if len(self._files) > self.limit:
                self._sweep()

    def release_unused(self) -> None:
        """Unmaps files that were not used since the last call."""
        with self._changing:
            self._files = self._used()

    def _used(self) -> list[MappedFile]:
        """Second chance: files that were used since the last call stay mapped."""
        used = list[MappedFile]()
        for file in self._files:
            if file.mapped and file.touched:
                file.touched = False
                used.append(file)
            else:
                file.unmap()
        return used

    def _sweep(self) -> None:
        used = self._used()
        surplus = max(len(used) - self.limit * 3 // 4, 0)
        for file in used[:surplus]:
            file.unmap()
        self._files = used[surplus:]
