"""Requests that found no message and wait for one: parked pulls and pops, and what wakes them."""
