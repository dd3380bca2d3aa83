"""Quotas of clients, topics and groups, in a file that may change at any time.

rules     the file: the rules for topics and groups (for clients see `remoting/quota`)
bodies    the maximum length of the body of a request, by its code
control   the check of each request
"""
