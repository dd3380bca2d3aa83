"""Push and lite-pull consumers."""
