"""Models for devices without PyTorch: ONNX files that predict, and that adapt."""

from fedmeta.export.onnx_file import export_onnx

__all__ = ["export_onnx"]
