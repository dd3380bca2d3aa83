"""Kills, power cuts and damage: what the store promises must hold after each of them."""
