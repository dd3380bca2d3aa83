"""The sink: writes rows of a data frame to topics, at least once or exactly once."""
