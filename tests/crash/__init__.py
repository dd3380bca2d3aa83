"""Kills, power cuts and damaged files: the guarantees of the store hold after each of them."""
