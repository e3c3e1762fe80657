"""Tests of fedmeta.data, module by module."""
