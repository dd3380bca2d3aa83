"""The wire and record formats of RocketMQ: bytes in, values out, and back. No sockets, no clock."""
