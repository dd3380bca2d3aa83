"""Inspection, verification and repair of a store directory without a broker."""
