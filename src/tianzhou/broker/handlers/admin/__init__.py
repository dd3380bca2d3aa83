"""Handlers of administration requests, one module per subject."""
