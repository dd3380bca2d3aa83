"""The commands of `tianzhou`, one module per noun."""
