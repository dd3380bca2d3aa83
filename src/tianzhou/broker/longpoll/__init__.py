"""Long polling: parked pulls and pops, and waking them when messages arrive."""
