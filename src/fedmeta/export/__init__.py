"""Models for devices without PyTorch: ONNX files and C code that predict, and that adapt."""

from fedmeta.export.activation_ranges import activation_ranges
from fedmeta.export.c import export_c
from fedmeta.export.onnx_file import export_onnx

__all__ = ["activation_ranges", "export_c", "export_onnx"]
