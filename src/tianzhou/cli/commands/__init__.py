"""The commands of `tianzhou`, one module per command group."""
