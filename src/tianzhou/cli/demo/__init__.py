"""The demonstration of `tianzhou up --demo`."""
