"""Runs the functions of an algorithm over the nodes of a federation, in this process."""
