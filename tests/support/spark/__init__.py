"""Spark for tests: sessions, standalone clusters and programs that run in them."""
