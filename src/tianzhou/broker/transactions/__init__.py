"""Transactional messages: half messages, their ends, and checks of those that stay open."""
