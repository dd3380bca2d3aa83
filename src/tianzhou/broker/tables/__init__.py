"""What a broker knows: topics, groups, offsets, clients, queue locks; and their files."""
