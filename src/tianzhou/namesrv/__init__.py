"""The nameserver: routes in memory, learned from brokers, asked for by clients."""
