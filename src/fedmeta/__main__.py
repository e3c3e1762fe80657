"""`python -m fedmeta`: the same program as `fedmeta`."""

from fedmeta.cli import main

main()
