"""A leased distributed task scheduler on PostgreSQL."""
