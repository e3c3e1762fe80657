"""Layers for many nodes at once: one call computes a layer for all nodes, each with its weights."""
