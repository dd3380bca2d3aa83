"""Connections to nameservers and brokers, shared by all clients of a process; routes; retries."""
