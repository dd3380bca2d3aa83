"""Sending one message: the request, the choice of the queue, retries."""
