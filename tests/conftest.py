"""What all tests share."""

from hypothesis import settings

# A machine that is busy for a moment must not fail a test, and a failure must say how to repeat it.
settings.register_profile("datacoord", deadline=None, print_blob=True)
settings.load_profile("datacoord")
