"""The body of a registration, read and written without pauses."""

from tianzhou.protocol.bodies.registration import RegisterBrokerBody, decode_steps, encode_steps
from tianzhou.remoting.scheduler import at_once


def decode(data: bytes, *, compressed: bool, broker_version: int) -> RegisterBrokerBody:
    return at_once(decode_steps(data, compressed=compressed, broker_version=broker_version))


def encode(body: RegisterBrokerBody, *, compressed: bool, broker_version: int) -> bytes:
    return at_once(encode_steps(body, compressed=compressed, broker_version=broker_version))
