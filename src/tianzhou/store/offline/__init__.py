"""Looking into and repairing a store directory without a broker."""
