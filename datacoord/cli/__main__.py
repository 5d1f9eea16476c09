"""`python -m datacoord.cli` is `datacoord`."""

from datacoord.cli import main

main(prog_name="datacoord")
