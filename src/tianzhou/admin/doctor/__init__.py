"""Finds the usual faults of a cluster, and brokers that have disappeared."""
