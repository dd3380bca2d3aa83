"""Masters and slaves of a cluster: how far apart they are, and making a slave the master."""
