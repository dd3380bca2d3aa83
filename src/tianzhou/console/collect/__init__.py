"""What the console knows about its clusters: snapshots, history, daily totals, questions.

snapshot    one cluster at one moment, as immutable structs
computing   answers of brokers to a snapshot, pure functions
"""
