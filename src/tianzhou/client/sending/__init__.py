"""One message to a broker: the request, the choice of a queue, retries."""
