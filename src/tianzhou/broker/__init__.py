"""The broker: receives messages from producers, stores them, and delivers them to consumers."""
