"""The slow twin: an independent reference implementation. Imports nothing from ``fedmeta``."""
