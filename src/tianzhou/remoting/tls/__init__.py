"""TLS: contexts, settings, and certificates that are renewed while a server runs."""
