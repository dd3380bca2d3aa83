"""Counters of the broker, and their history as RocketMQ reports it."""
