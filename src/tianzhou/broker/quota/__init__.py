"""Quotas: how much clients, topics and groups may ask for, by a file that may change at any time.

buckets   how fast something may go; values in, values out
rules     the file: what it may say, and the rule that is for a name or an address
bodies    how long the body of a request may be, by its code; no setting
control   the check of each request, and the look for changes
"""
