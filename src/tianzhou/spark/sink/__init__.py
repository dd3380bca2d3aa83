"""The sink: rows of a data frame into topics, exactly once where asked."""
