"""`datacoord restore`: a database that comes back older than the world around it."""
