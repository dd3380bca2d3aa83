"""Diagnosis of a cluster: common faults, and brokers that are missing."""
