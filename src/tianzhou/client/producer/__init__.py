"""Producers, plain and transactional."""
