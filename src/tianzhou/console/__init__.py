"""The web console: a cluster in the browser."""
