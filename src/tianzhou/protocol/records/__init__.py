"""Messages as bytes: records, batches, ids, handles, compressed bodies."""
