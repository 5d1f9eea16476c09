"""The `datacoord` command."""
