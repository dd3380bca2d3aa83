"""The nameserver: routes in memory, registered by brokers and queried by clients."""
