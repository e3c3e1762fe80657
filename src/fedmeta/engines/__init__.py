"""Engines run an algorithm's functions over nodes: `local` in this process, `flower` in a fleet."""
