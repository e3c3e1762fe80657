"""Meta-gradients in closed form against autograd."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from fedmeta.config.execution import Execution
from fedmeta.core import randomness
from fedmeta.core.meta_gradient import Curvature, MetaGradient, meta_gradient
from fedmeta.core.objective import Adaptation, Facts, Objective
from fedmeta.core.sample_sets import NodeData, Samples
from fedmeta.core.tree import Tree
from fedmeta.engine.chain.recognise import chain_of
from fedmeta.engine.resolution import closed_form
from fedmeta.models.functional import functionalise
from fedmeta.models.losses import Balanced, Loss, cross_entropy, squared_error

NODES, SUPPORT, QUERY, SHAPE, CLASSES = 3, 5, 4, (2, 3), 4

NETWORKS = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, CLASSES)),
    "elu": lambda: mlp(nn.ELU(0.7), nn.ELU()),
    "relu": lambda: mlp(nn.ReLU(), nn.ReLU()),
    "leaky": lambda: mlp(nn.LeakyReLU(0.2), nn.LeakyReLU()),
    "tanh": lambda: mlp(nn.Tanh(), nn.Sigmoid()),
    "without-activation": lambda: mlp(nn.Identity(), nn.Tanh()),
    "without-bias": lambda: mlp(nn.Tanh(), nn.ELU(), bias=False),
    "nested": lambda: nn.Sequential(mlp(nn.Tanh(), nn.ELU()), nn.Tanh(), nn.Linear(CLASSES, 4)),
}
SCOPES: dict[str, str | tuple[str, ...]] = {
    "all": "all",
    "head": "head",
    "biases": ("*.bias",),
    "weights": ("*.weight",),
    "middle": ("3.*",),
}


def mlp(first: nn.Module, second: nn.Module, bias: bool = True) -> nn.Sequential:
    layers = [nn.Linear(a, b, bias=bias) for a, b in ((6, 7), (7, 5), (5, CLASSES))]
    return nn.Sequential(nn.Flatten(), layers[0], first, layers[1], second, layers[2])


def samples(count: int, seed: int, values: bool) -> Samples:
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(NODES, count, *SHAPE, generator=draw, dtype=torch.float64)
    labels = torch.randint(CLASSES, (NODES, count), generator=draw)
    if values:
        labels = torch.randn(NODES, count, CLASSES, generator=draw, dtype=torch.float64)
    mask = torch.ones(NODES, count, dtype=torch.float64)
    mask[1, -1] = 0  # padding
    return Samples(inputs, labels, mask)


def both(
    model: nn.Module,
    rule: MetaGradient,
    loss: Loss = cross_entropy,
    own: bool = False,
    frozen: str = "",
) -> list[tuple[Tree, Tensor]]:
    """By autograd and in closed form, for some nodes with one θ, or with θ of their own."""
    torch.manual_seed(0)
    model = model.double()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.partition(".")[0] != frozen)
    functional = functionalise(model)
    chain = chain_of(functional, loss)
    assert chain is not None
    theta = functional.theta
    if own:
        theta = {
            n: torch.stack([leaf * (1 + i) for i in range(NODES)]) for n, leaf in theta.items()
        }
    values = loss is squared_error
    data = NodeData(samples(SUPPORT, 1, values), samples(QUERY, 2, values))
    one = torch.ones(NODES, dtype=torch.float64)
    facts = Facts(one, one, one, one, randomness.fold(randomness.key(0), torch.arange(NODES)))
    plain = Objective(functional, loss, draws=False)
    found = []
    for objective in (plain, replace(plain, closed_form=chain)):
        step = torch.func.vmap(partial(meta_gradient, objective, rule), (0 if own else None, 0, 0))
        found.append(step(theta, data, facts))
    return found


def assert_close(pair: list[tuple[Tree, Tensor]]) -> None:
    (gradient, loss), (closed, value) = pair
    assert list(closed) == list(gradient)
    for name, leaf in gradient.items():
        torch.testing.assert_close(closed[name], leaf, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(value, loss, rtol=1e-12, atol=1e-12)


def fitting() -> list[tuple[str, str]]:
    """Networks and scopes that have a parameter in common."""
    pairs = [(network, scope) for network in NETWORKS for scope in SCOPES]
    lacking = {(network, "middle") for network in ("linear", "nested")}
    return [pair for pair in pairs if pair not in {*lacking, ("without-bias", "biases")}]


@pytest.mark.parametrize("curvature", ["exact", "none"])
@pytest.mark.parametrize(("network", "scope"), fitting())
def test_it_is_what_autograd_finds(network: str, scope: str, curvature: Curvature) -> None:
    rule = MetaGradient(Adaptation(0.3, scope=SCOPES[scope]), curvature)
    assert_close(both(NETWORKS[network](), rule))


@pytest.mark.parametrize("loss", [squared_error, Balanced.of([3, 2, 6, 1])])
def test_other_losses(loss: Loss) -> None:
    assert_close(both(mlp(nn.ELU(), nn.Tanh()), MetaGradient(Adaptation(0.3)), loss))


def test_nodes_with_models_of_their_own() -> None:
    assert_close(both(mlp(nn.ELU(), nn.Tanh()), MetaGradient(Adaptation(0.3)), own=True))


@pytest.mark.parametrize("frozen", ["1", "3", "5"])
def test_frozen_layers_are_constants(frozen: str) -> None:
    assert_close(both(mlp(nn.ELU(), nn.Tanh()), MetaGradient(Adaptation(0.3)), frozen=frozen))


@pytest.mark.parametrize("resplit", ["random", "classes"])
def test_samples_that_are_divided_anew(resplit: str) -> None:
    rule = MetaGradient(Adaptation(0.3, scope="head"), resplit=resplit)  # type: ignore[arg-type]
    assert_close(both(mlp(nn.ELU(), nn.Tanh()), rule))


def test_repeats_side_by_side_and_a_node_alone() -> None:
    functional = functionalise(mlp(nn.Tanh(), nn.ELU()).double())
    chain = chain_of(functional, cross_entropy)
    assert chain is not None
    data = NodeData(samples(SUPPORT, 1, False), samples(QUERY, 2, False))
    moves = frozenset(functional.theta)

    def gradient(theta: Tree, node: NodeData) -> tuple[Tree, Tensor]:
        return chain.meta_gradient(theta, node, moves, 0.3, True)

    theta = {n: torch.stack([leaf, 2 * leaf]) for n, leaf in functional.theta.items()}
    nodes = torch.func.vmap(gradient, (None, 0))
    both_repeats = torch.func.vmap(nodes, (0, None))(theta, data)
    second = {name: leaf[1] for name, leaf in theta.items()}
    alone = gradient(second, NodeData(*(Samples(*(x[2] for x in part)) for part in data)))
    for name, leaf in alone[0].items():
        torch.testing.assert_close(both_repeats[0][name][1, 2], leaf)
    torch.testing.assert_close(both_repeats[1][1, 2], alone[1])


class Own(nn.Sequential):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)),
        nn.Sequential(nn.Linear(2, 2), nn.Tanh()),
        nn.Sequential(nn.Tanh(), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Tanh(), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.Flatten(), nn.Linear(2, 2)),
        nn.Sequential(*[nn.Linear(2, 2)] * 2),
        Own(nn.Linear(2, 2)),
    ],
)
def test_other_networks_are_no_chains(model: nn.Module) -> None:
    assert chain_of(functionalise(model), cross_entropy) is None


def test_a_hook_or_another_loss_is_noticed() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    assert chain_of(functionalise(model), lambda z, y: cross_entropy(z, y)) is None
    model[0].register_forward_hook(lambda *_: None)
    assert chain_of(functionalise(model), cross_entropy) is None


def test_where_it_is_taken() -> None:
    model, batched = functionalise(nn.Linear(2, 2)), Execution(path="batched")
    assert closed_form(batched, model, cross_entropy) is not None
    for other in (
        replace(batched, path="loop"),
        replace(batched, derivatives="autograd"),
        replace(batched, precision="bf16"),
    ):
        assert closed_form(other, model, cross_entropy) is None
