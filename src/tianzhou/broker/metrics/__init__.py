"""What monitoring reads: Prometheus metrics, the names of rocketmq-exporter, backlogs."""
