"""Where the state of a replication group is kept, so that its members agree on it.

`values` has what is kept there and the interface, `encoding` its JSON. The authority is etcd; tests
run the same rules on a model of it.
"""
