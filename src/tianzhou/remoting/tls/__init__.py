"""TLS: contexts, settings, and the reload of certificates."""
