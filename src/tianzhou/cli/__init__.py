"""The command line: `tianzhou` and the commands of RocketMQ (`mqadmin`, `mqbroker`, ...)."""
