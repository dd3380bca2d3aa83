"""The message store: one log, derived queues and index, in RocketMQ's own files."""
