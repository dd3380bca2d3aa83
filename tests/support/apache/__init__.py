"""Apache RocketMQ for tests: jars from Maven Central, JVMs, stock clients and tools."""
