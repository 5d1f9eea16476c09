"""Several coordinators on one PostgreSQL."""
