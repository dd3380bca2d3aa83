"""Pages with the forms of changes: topics, groups, offsets, settings; expansion, doctor, pipelines.

They ask the brokers, not the snapshot: a form shows what a change would start from.
"""
