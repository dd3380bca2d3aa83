"""Quotas: limits per client, from a file that is reloaded when it changes.

addresses  patterns of addresses, for quota files and white lists
buckets    token buckets
files      the sections of a quota file common to all servers, and the rule for an address
bodies     the longest body of each request code
tables     limits of tables that requests can grow
control    checks the address of each request, and reloads the file
"""
