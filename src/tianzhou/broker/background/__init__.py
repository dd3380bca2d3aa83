"""Parts below everything else in the broker: periodic work on the event loop, yielding to requests,
crash points.
"""
