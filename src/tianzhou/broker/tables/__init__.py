"""Tables of a broker: topics, groups, offsets, clients, queue locks; and their files."""
