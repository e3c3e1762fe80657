"""From a function of named tensors to an ONNX graph.

The function is traced with its derivatives into plain tensor operations, for any number of samples,
and these are translated by PyTorch's own exporter.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from fedmeta.core.errors import MissingExtraError
from fedmeta.core.tree import Tree
from fedmeta.export.derivatives import decompositions

OPSET = 20


@dataclass(frozen=True, eq=False)
class Graph:
    """A function of named tensors, and what becomes of each of its inputs.

    Args:
        function: named tensors to named tensors, made of torch's operations.
        samples: inputs with a leading axis of samples, examples of any length of at least 2.
        defaults: inputs that may be given, with what they are where they are not.
        constants: inputs that are part of the graph.
    """

    function: Callable[[Tree], Tree]
    samples: Tree
    defaults: Tree = field(default_factory=dict)
    constants: Tree = field(default_factory=dict)

    def translated(self) -> Any:
        """The graph as an `onnx.ModelProto`."""
        try:
            import onnx
            import onnxscript  # noqa: F401  (torch.onnx needs it)
        except ImportError:
            raise MissingExtraError(
                "onnx or onnxscript, which write .onnx files,", "onnx"
            ) from None
        inputs = {**self.samples, **self.defaults, **self.constants}
        names: list[str] = []

        def flat(*tensors: Tensor) -> list[Tensor]:
            results = self.function(dict(zip(inputs, tensors, strict=True)))
            names[:] = results
            return list(results.values())

        mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
        with mode, _plainly(), enable_python_dispatcher():  # whose shapes may be symbols
            symbols = self._symbolic(mode, inputs)
            traced = make_fx(flat, decomposition_table=decompositions())(*symbols)
        any_number = torch.export.Dim.DYNAMIC
        axes = tuple({0: any_number} if name in self.samples else {} for name in inputs)
        with _quietly():
            program = torch.onnx.export(
                traced.eval(),
                tuple(inputs.values()),
                input_names=list(inputs),
                output_names=names,
                dynamic_shapes=axes,
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
        assert program is not None  # it is where no file is named
        proto = program.model_proto
        for name, value in {**self.defaults, **self.constants}.items():
            proto.graph.initializer.append(onnx.numpy_helper.from_array(value.numpy(), name))
        for node in proto.graph.node:  # where in which file it was traced is nobody's business
            node.ClearField("metadata_props")
            node.ClearField("doc_string")
        kept = [each for each in proto.graph.input if each.name not in self.constants]
        del proto.graph.input[:]
        proto.graph.input.extend(kept)
        return proto

    def _symbolic(self, mode: FakeTensorMode, inputs: Tree) -> list[Tensor]:
        """The inputs without their numbers, and with a number of samples that is not told."""
        symbolic: list[Tensor] = []
        for name, tensor in inputs.items():
            axes = [DimDynamic.STATIC] * tensor.ndim
            if name in self.samples:
                axes[0] = DimDynamic.DYNAMIC
            symbolic.append(
                mode.from_tensor(tensor, symbolic_context=StatelessSymbolicContext(axes))
            )
        return symbolic


class _FlatProducts(TorchFunctionMode):
    """Linear layers on (n, …, d) as products of matrices, shaped here, where n may be a symbol."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Torch's own code would write down the number of samples that it sees."""
        if func is functional.linear and args[0].ndim > 2:
            x, *rest = args
            flat = func(x.reshape(-1, x.shape[-1]), *rest, **(kwargs or {}))
            return flat.reshape(*x.shape[:-1], flat.shape[-1])
        return func(*args, **(kwargs or {}))


@contextmanager
def _plainly() -> Iterator[None]:
    """Layers as operations that ONNX has: recurrent ones and attention as products."""
    fused, fast = torch.backends.mkldnn.enabled, torch.backends.mha.get_fastpath_enabled()
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with _FlatProducts(), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mkldnn.enabled = fused
        torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def _quietly() -> Iterator[None]:
    """PyTorch's exporter speaks of libraries that nobody asked for."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
