"""Engines run an algorithm's functions over a federation: `local` in this process."""
