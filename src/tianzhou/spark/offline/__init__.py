"""`format("rocketmq-store")`: a store directory as a table, without a broker."""
