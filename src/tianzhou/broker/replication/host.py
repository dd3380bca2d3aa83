"""What the driver of the role needs of its broker; `broker/elected.py` has it."""

from pathlib import Path
from typing import Protocol

from tianzhou.ha.epochs import Epochs
from tianzhou.ha.listener import Listener


class Host(Protocol):
    """What the broker does in a change of its role."""

    async def become_master(self, epoch: int) -> None:
        """Make the tables fit the log, and build what a master runs; clients are refused.

        Raises TianzhouError.
        """
        ...

    async def become_slave(self) -> None:
        """Save the tables, and build what a slave runs. Raises TianzhouError."""
        ...

    async def truncate(self, to: int, entries: Epochs, confirm: int) -> None:
        """Cut the log, the epochs and what the tables say of it, durably. Raises StoreError."""
        ...

    async def start_empty(self, saved_from: int) -> Path | None:
        """Remove the log, after saving the part from there on; returns the file that has it.

        Raises StoreError.
        """
        ...

    async def joined(self, replica_id: int) -> None:
        """The id of this replica is known."""
        ...

    def connected(self) -> None:
        """The HA connection to the master is open: its tables can be copied."""
        ...

    def announced(self, lines: bytes) -> None:
        """The master has changed topics or groups. Raises ReplicationError."""
        ...

    async def read_final_tables(self) -> bool:
        """Copy the tables of a master that hands over; whether that was possible."""
        ...

    def register(self, *, is_registered: bool) -> None:
        """Register with the nameservers from now on, or unregister and close clients."""
        ...

    @property
    def listener(self) -> Listener | None:
        """The HA port of a master."""
        ...
