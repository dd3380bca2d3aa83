"""Handlers of requests, one module per subject.

A handler is a function of the parts it needs, the connection and the request. It returns the
answer, or an awaitable of it, or None if the answer comes later; it raises RequestError to refuse.
"""
