"""Databases that are lost, and rebuilt from the objects."""
