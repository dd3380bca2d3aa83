"""A request from frame to handler: the fast path, the checks before a handler, the table of
handlers.
"""
