"""`datacoord verify`: what it must find, and what it must never say."""
