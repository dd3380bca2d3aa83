"""Message trace and OpenTelemetry."""
