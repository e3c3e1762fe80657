"""The head of a network: the parameters of the last product on the way to its output.

A product mixes features by trainable weights: a matrix product, a convolution, a look-up of
vectors, a distance. The network is called once, and from its output the graph that autograd
recorded is walked back:

- through whatever has no weights, and through scales and shifts of single features (a LayerNorm,
  a temperature), which do not choose what is combined;
- up to the first product on every way. Where one of these feeds another (a residual connection
  around the last layer) the one nearer to the output is the head; where none does (a sum of two
  heads, a concatenation) all are.

Any sample of the right shape will do: what is looked at is how the output is made, not its value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedmeta.core.tree import Tree
from fedmeta.models.functional import FunctionalModel

# Autograd's nodes that are products, and which of their operands are multiplied: the others are
# added.
_PRODUCTS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("Mm", "Bmm", "Mv", "Dot", "Linear", "MkldnnLinear", "Cdist"), (0, 1)),
    **dict.fromkeys(("Addmm", "Baddbmm", "Addbmm", "Addmv", "Addr"), (1, 2)),
    **dict.fromkeys(("Convolution", "ConvolutionOverrideable", "MkldnnConvolution"), (0, 1)),
    "Trilinear": (0, 1, 2),
    **dict.fromkeys(("MkldnnRnnLayer", "CudnnRnn", "Miopen_Rnn"), tuple(range(9))),
    **dict.fromkeys(("Embedding", "EmbeddingBag"), (0,)),
}
_LOOKUPS = frozenset({"Embedding", "EmbeddingBag"})
_MOVES = {"T", "Transpose", "Permute", "Clone", "ToCopy"}
_SHAPES = _MOVES | {"View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Expand"}
_LAYER = re.compile(r"_l\d+(_reverse)?$")  # of a parameter of a recurrent layer


@dataclass(frozen=True)
class Head:
    """What produces the output.

    Args:
        names: of its parameters, in the order of θ.
        note: what a reader should know of it besides, or "".
    """

    names: tuple[str, ...]
    note: str = ""


def head_of(model: FunctionalModel, inputs: Tensor) -> Head:
    """The head of a model, or the module declared last where the way of its output is not seen.

    Args:
        model: any network.
        inputs: a few samples as it takes them, (n, *shape); their values do not matter.

    Example:
        >>> from fedmeta.models.functional import functionalise
        >>> layers = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2), nn.LayerNorm(2))
        >>> head_of(functionalise(layers), torch.zeros(2, 4)).names
        ('2.weight', '2.bias')

    The head alone is what ANIL adapts: Raghu, Raghu, Bengio, Vinyals, Rapid Learning or Feature
    Reuse?, ICLR 2020.
    """
    why = "its output does not depend on them as far as autograd sees"
    try:
        found = _traced(model, inputs)
    except Exception as error:  # a network of one's own may raise anything
        found, why = None, f"{type(error).__name__} while tracing"
    if found is not None:
        return found
    last = next(reversed(model.theta)).rpartition(".")[0]
    names = tuple(name for name in model.theta if name.rpartition(".")[0] == last)
    return Head(names, f"the module declared last: {why}")


def feature_size(model: FunctionalModel, head: Head, inputs: Tensor) -> float | None:
    """E‖h‖² of the features h that the head is given; None where it is no linear layer.

    Args:
        model: at the parameters of interest.
        head: of it.
        inputs: samples as it takes them, (n, *shape).

    Example:
        >>> from fedmeta.models.functional import functionalise
        >>> layers = functionalise(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
        >>> feature_size(layers, Head(("1.weight", "1.bias")), torch.ones(3, 2, 2))
        4.0
    """
    owners = {name.rpartition(".")[0] for name in head.names}
    layer = model.inference.get_submodule(min(owners)) if len(owners) == 1 else None
    if not isinstance(layer, nn.Linear):
        return None
    given: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, arguments: given.append(arguments[0]))
    try:
        with torch.no_grad():
            model(model.theta, inputs)
    except Exception:  # a network of one's own need not take such samples
        return None
    finally:
        hook.remove()
    size = float(given[-1].double().square().sum(-1).mean()) if given else float("nan")
    return size if size < float("inf") else None


def _traced(model: FunctionalModel, inputs: Tensor) -> Head | None:
    # On the CPU everywhere, so that all machines see one graph: GPUs fuse layers.
    dtype = next(iter(model.theta.values())).dtype
    model = model.to(torch.device("cpu"), dtype)
    samples = inputs.detach().cpu()
    if samples.is_floating_point():
        samples = samples.to(dtype).requires_grad_()
    theta = {name: leaf.detach().requires_grad_() for name, leaf in model.theta.items()}
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        output = model(theta, samples, None)
    graph = _Graph(output.grad_fn, theta, samples)
    products = graph.products()
    if not products:
        reached = graph.parameters([graph.root] if graph.root is not None else [])
        return Head(_ordered(reached, theta)) if reached else None
    upstream = graph.reachable(child for each in products for child in each.data)
    last = [each for each in products if each.node not in upstream]
    weights = {name for each in last for name in graph.parameters(each.weights)}
    owners = {name.rpartition(".")[0] for name in weights}
    beside = {name for name in graph.beside if name.rpartition(".")[0] in owners}
    names = weights | beside | graph.shifts | {n for e in last for n in graph.parameters(e.added)}
    names, recurrent = _whole_recurrent_layers(names, model)
    tied = sorted(names & graph.parameters(upstream) - recurrent)
    notes = []
    if tied:
        notes.append(f"{', '.join(tied)} is tied: it moves wherever the network uses it")
    if graph.frozen:
        notes.append("what follows it is frozen")
    return Head(_ordered(names, theta), "; ".join(notes))


@dataclass(frozen=True, eq=False)
class _Product:
    """A product on the way to the output, by the nodes of its operands."""

    node: Any
    weights: list[Any]  # made of parameters alone, and multiplied
    added: list[Any]  # made of parameters alone, and added: a bias
    data: list[Any]  # all others


class _Graph:
    """What autograd recorded, from the output back to parameters and samples."""

    def __init__(self, root: Any, theta: Tree, samples: Tensor) -> None:
        self.root = root
        self._names = {id(leaf): name for name, leaf in theta.items()}
        self._nodes = list(_after_operands(root))
        self._mixed = self._reached_by(lambda node: _is_leaf(node, samples) or _looks_up(node))
        if not self._mixed:  # no gradient flows to samples, which became whole numbers or the like
            self._mixed = self._reached_by(_takes_constants)
        self.beside: set[str] = set()  # parameters that scale or shift single features
        self.shifts: set[str] = set()  # those that are added to a product and to nothing else
        self.frozen = False  # whether a product with constant weights was passed

    def products(self) -> list[_Product]:
        """Those that lie on the way to the output without another in between."""
        found: dict[Any, _Product] = {}
        todo, seen = [(self.root, False)] if self.root is not None else [], set()
        while todo:
            node, summed = todo.pop()
            if (node, summed) in seen:
                continue
            seen.add((node, summed))
            product = self._product(node, summed)
            if product is not None:
                found[node] = product
                continue
            kind, mixed = _kind(node), [each for each in _operands(node) if each in self._mixed]
            own = [each for each in _operands(node) if each not in self._mixed]
            if not mixed:
                todo += [(each, summed) for each in own]
                continue
            self.beside |= self.parameters(own)
            if kind in ("Add", "Sub") and all(self._is_product(each) for each in mixed):
                self.shifts |= self.parameters(own)
            if kind in _PRODUCTS:
                places = [node.next_functions[i][0] for i in _PRODUCTS[kind]]
                self.frozen |= any(each is None for each in places)
            # Σ_j x_j w_j written out is a product too.
            todo += [(each, summed or kind == "Sum") for each in mixed]
        return list(found.values())

    def _product(self, node: Any, summed: bool) -> _Product | None:
        """A node as a product with weights that are made of parameters alone, if it is one."""
        kind, operands = _kind(node), [each for each, _ in node.next_functions]
        own = isinstance(node, torch.autograd.function.BackwardCFunction)  # code of the user's
        if kind in _PRODUCTS:
            multiplied = [operands[i] for i in _PRODUCTS[kind] if i < len(operands)]
        elif own or (summed and kind in ("Mul", "Sub")):
            multiplied = operands
        else:
            return None
        weights = [e for e in multiplied if e is not None and e not in self._mixed]
        if own:  # nobody says what it does: one vector is taken for a scale, a matrix for weights
            weights = [e for e in weights if _is_leaf(e) and e.variable.ndim > 1]
        if not any(self.parameters([each]) for each in weights):
            return None
        rest = [each for each in operands if each is not None and each not in weights]
        added = [each for each in rest if each not in self._mixed]
        return _Product(node, weights, added, [each for each in rest if each in self._mixed])

    def _is_product(self, node: Any) -> bool:
        """Whether a node is a product with weights, whatever its result is reshaped to."""
        while _kind(node) in _SHAPES and (operands := _operands(node)):
            node = operands[0]
        return self._product(node, summed=False) is not None

    def parameters(self, nodes: Iterable[Any]) -> set[str]:
        """Names of all parameters that some nodes are made from."""
        leaves = (each.variable for each in self.reachable(nodes) if _is_leaf(each))
        return {self._names[id(leaf)] for leaf in leaves if id(leaf) in self._names}

    def reachable(self, nodes: Iterable[Any]) -> set[Any]:
        """Some nodes and everything that they are made from."""
        todo, seen = list(nodes), set()
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                todo += _operands(node)
        return seen

    def _reached_by(self, starts: Any) -> set[Any]:
        """Nodes for which `starts` holds, and those that are made from any of them."""
        found: set[Any] = set()
        for node in self._nodes:
            if starts(node) or any(each in found for each in _operands(node)):
                found.add(node)
        return found


def _after_operands(root: Any) -> Iterator[Any]:
    """All nodes of a graph, each after its operands; without recursion, for long sequences."""
    todo, seen = [(root, False)] if root is not None else [], set()
    while todo:
        node, done = todo.pop()
        if done:
            yield node
        elif node not in seen:
            seen.add(node)
            todo.append((node, True))
            todo += [(each, False) for each in _operands(node)]


def _operands(node: Any) -> list[Any]:
    return [each for each, _ in node.next_functions if each is not None]


def _kind(node: Any) -> str:
    """The operation of a node: "AddmmBackward0" is that of "Addmm"."""
    return str(node.name()).partition("Backward")[0].lstrip("_")


def _is_leaf(node: Any, leaf: Tensor | None = None) -> bool:
    variable = getattr(node, "variable", None)
    return variable is not None and (leaf is None or variable is leaf)


def _looks_up(node: Any) -> bool:
    return _kind(node) in _LOOKUPS


def _takes_constants(node: Any) -> bool:
    """Whether a node multiplies by, or picks by, something that no gradient flows to."""
    kind = _kind(node)
    picks = kind in ("Index", "IndexSelect", "Gather")
    return picks or (kind in _PRODUCTS and any(each is None for each, _ in node.next_functions))


def _whole_recurrent_layers(names: set[str], model: FunctionalModel) -> tuple[set[str], set[str]]:
    """Names with all parameters of the recurrent layers among them; and which these are.

    The last product of a recurrent layer is the last of its many steps: half of its gates.
    """
    recurrent = {
        path: layer
        for path, layer in model.inference.named_modules()
        if isinstance(layer, nn.RNNBase | nn.RNNCellBase)
    }
    added: set[str] = set()
    for name in names:
        path, _, own = name.rpartition(".")
        if path in recurrent:
            suffix = match.group().removesuffix("_reverse") if (match := _LAYER.search(own)) else ""
            added |= {
                other
                for other in model.theta
                if other.rpartition(".")[0] == path
                and other.removesuffix("_reverse").endswith(suffix)
            }
    return names | added, added


def _ordered(names: set[str], theta: Tree) -> tuple[str, ...]:
    return tuple(name for name in theta if name in names)
