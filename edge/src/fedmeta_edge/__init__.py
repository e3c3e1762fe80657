"""fedmeta-edge: a model that adapts on the device, with NumPy and ONNX Runtime alone.

model = fedmeta_edge.load("model.onnx")
mine = fedmeta_edge.adapt(model, inputs, labels)
names = fedmeta_edge.classify(model, more_inputs, mine.weights)
"""

from fedmeta_edge.adaptation import Adapted, adapt
from fedmeta_edge.decision import Decision, adapt_if_it_helps
from fedmeta_edge.device import Device, begin, learn, reopen, watch
from fedmeta_edge.errors import EdgeError
from fedmeta_edge.model import Model, answers, classify, confidence, load, predict
from fedmeta_edge.samples import Samples, read_samples
from fedmeta_edge.weights import read_weights, write_weights

__all__ = [
    "Adapted",
    "Decision",
    "Device",
    "EdgeError",
    "Model",
    "Samples",
    "adapt",
    "adapt_if_it_helps",
    "answers",
    "begin",
    "classify",
    "confidence",
    "learn",
    "load",
    "predict",
    "read_samples",
    "read_weights",
    "reopen",
    "watch",
    "write_weights",
]
