"""Registration with nameservers, copying metadata of other brokers, requests to clients."""
