"""What features share that work in the background; `remoting/scheduler.py` decides when they run.

`arrivals.py` notifies packages of new messages, `crash_points.py` is for tests of crashes,
`sqlite_file.py` opens the indexes that can be rebuilt.
"""
