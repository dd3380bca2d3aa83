"""Cuts the log of a slave, and its epochs with it (R9)."""

from pathlib import Path

from tianzhou.ha.epochs import EpochFile, Epochs, files_with, range_at, within_log
from tianzhou.store.message_store import MessageStore
from tianzhou.store.truncation.record import Truncation


def truncate(
    store: MessageStore, epoch_file: EpochFile, to: int, epochs: Epochs, *, confirm: int
) -> None:
    """Removes everything from a log offset on, durably; `epochs` are the entries that stay.

    To be called by the writer's thread when the slave has stopped to follow. The tables of the
    broker must be adapted before `store.truncation.finish` ends it; a start does both for a
    truncation that was interrupted. `confirm` is the largest confirm offset seen.

    Raises TruncationRefused, then nothing has changed; StoreError.
    """
    files = files_with(within_log(epochs, to))
    store.truncation.run(Truncation(to=to, files=files), confirm=confirm)
    epoch_file.reload()


def save_tail(store: MessageStore, epoch_file: EpochFile, log_offset: int) -> Path | None:
    """Saves the log from a log offset on in a side file, for an operator; see `store/cut_tail.py`.

    May be called in another thread, when nothing is appended. Raises StoreError.
    """
    epoch, _ = range_at(epoch_file.epochs, log_offset)
    return store.truncation.save_tail(log_offset, epoch.number)


def remove_all(store: MessageStore, epoch_file: EpochFile) -> None:
    """Removes the whole log, durably; as `truncate` in everything else."""
    store.truncation.run(Truncation(files=files_with(())), confirm=0)
    epoch_file.reload()
