"""`format("rocketmq")`: topics as a table and as a stream."""
