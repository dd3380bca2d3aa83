"""Files of the store: the disk interface, mapped files, their sequences, lock and checkpoint."""
