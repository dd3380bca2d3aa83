"""The broker among others: registration with nameservers, metadata copied on joining, calls to
clients.
"""
