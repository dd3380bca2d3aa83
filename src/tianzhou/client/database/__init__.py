"""Messages and databases: transactional outbox, idempotent consumption."""
