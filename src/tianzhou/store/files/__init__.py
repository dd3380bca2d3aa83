"""Files of the store: the disk behind one interface, mapped files, sequences of them, lock and
checkpoint.
"""
