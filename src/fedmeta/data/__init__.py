"""Data: reading them, dealing them out to nodes, and handing nodes to PyTorch as tensors."""

from fedmeta.core.sample_sets import NodeData, Samples
from fedmeta.data.federation import Federation, Node, Task, describe
from fedmeta.data.in_memory import federate
from fedmeta.data.loading import deal_out, load, read
from fedmeta.data.packing import longest_sets, pack, pack_precise, unpacked
from fedmeta.data.pool import Pool, normalised_inputs
from fedmeta.data.readers.registry import BUILT_IN
from fedmeta.data.scaling import Scaling, Sums, fit_scaling, sums_of
from fedmeta.data.settings import DataSettings

__all__ = [
    "BUILT_IN",
    "DataSettings",
    "Federation",
    "Node",
    "NodeData",
    "Pool",
    "Samples",
    "Scaling",
    "Sums",
    "Task",
    "deal_out",
    "describe",
    "federate",
    "fit_scaling",
    "load",
    "longest_sets",
    "normalised_inputs",
    "pack",
    "pack_precise",
    "read",
    "sums_of",
    "unpacked",
]
