"""Cuts the end off a log: the record of it, the cut itself, and a copy of what is cut off."""
