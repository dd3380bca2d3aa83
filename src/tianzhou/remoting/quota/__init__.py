"""What one client may take of a server from the others, by a file that may change at any time.

addresses  patterns of addresses, for these files and for white lists
buckets    how fast something may go; values in, values out
files      the part of a quota file that every server has, and the rule that is for an address
bodies     how long the body of a request may be, by a table of its server; no setting
control    the check of each request's address, and the look for changes
"""
