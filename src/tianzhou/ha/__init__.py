"""Replication between brokers of one name: the master sends its log, slaves append it.

    frames, progress, master_side, slave_side     bytes and decisions, no sockets, files or clocks
    tokens                                        connect a hello with an HA connection
    epochs, store_id                              which master wrote which part of the log; its id
    hello                                         what two brokers of Tianzhou check before that
    log_sender, listener                          sockets: the HA port of a master
    follower, master_connection                   a slave's way to its master, and one connection
    tables                                        topics, groups and offsets of the master

Two protocols share the HA port (listenPort + 1): the default one of RocketMQ 4.9 and 5.x, with
brokers of Apache; and, between brokers of Tianzhou, one that begins with a hello.
"""
