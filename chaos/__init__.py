"""The chaos harness: breaks a PostgreSQL-backed queue and judges what it did from the WAL."""
