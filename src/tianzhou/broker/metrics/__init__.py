"""Prometheus metrics under the names of RocketMQ 5.x and of rocketmq-exporter."""
