"""The coordinator: the service that moves files and checkpoints in one SQL transaction."""
