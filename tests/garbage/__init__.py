"""The garbage collector: what it deletes, what it never deletes, and what it races with."""
