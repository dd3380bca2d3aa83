"""Transactional messages: half messages, their end, and the check-back of open ones."""
