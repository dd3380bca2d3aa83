"""A model of a group of three replicas, which drives the real role state machine.

`world` has the group with its authority, logs, connections and faults; `search` explores all of its
interleavings, or random ones; `mutations` switches single rules off.
"""
