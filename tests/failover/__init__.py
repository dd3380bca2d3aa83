"""Scenarios of automatic failover in network namespaces."""
