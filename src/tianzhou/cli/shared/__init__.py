"""Shared by commands: options, connection to the cluster, output, contexts."""
