"""The command line: one file per noun, and the stock command names beside it."""
