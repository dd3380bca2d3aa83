"""The simple consumer, which uses pop consumption."""
