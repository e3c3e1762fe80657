"""Models for microcontrollers: one pair of C files that predicts, adapts and decides."""

from fedmeta.export.c.costs import parse_budget
from fedmeta.export.c.files import export_c
from fedmeta.export.c.ranges import source_ranges

__all__ = ["export_c", "parse_budget", "source_ranges"]
