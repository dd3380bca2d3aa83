"""Changes of a cluster as people plan them: what is there, what depends on it, what is refused."""
