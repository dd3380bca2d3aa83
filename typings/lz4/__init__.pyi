"""Types of the part of `lz4` that is used here; the package brings none of its own."""
