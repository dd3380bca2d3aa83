"""Quotas: how much clients, topics and groups may ask for, by a file that may change at any time.

rules     the file: what it may say of topics and groups besides (see `remoting/quota`)
bodies    how long the body of a request may be, by its code; no setting
control   the check of each request
"""
