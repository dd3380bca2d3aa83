"""Pop consumption: messages in flight, redelivery of what is not acknowledged, and the checkpoints
of RocketMQ 5.x.
"""
