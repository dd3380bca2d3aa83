"""`format("rocketmq")`: reads topics in batches and streams."""
