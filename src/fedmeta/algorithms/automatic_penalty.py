"""A penalty that nobody has to choose: found round by round from sums the platform has anyway."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedmeta import tree
from fedmeta.algorithms.base import Metrics
from fedmeta.tree import Tree

# How long sums of the past count: about ten rounds of contributions, twenty of their squares.
_MOMENTUM, _MEMORY = 0.9, 0.95
# A loss may exceed the largest of the last few by this share before its round is taken back, and
# the best smoothed one by this factor; both are wider where losses fluctuate.
_WINDOW, _SHARE, _MOST, _SMOOTHING = 5, 0.1, 2.0, 0.7
# ρ shrinks by the first until a round is rejected for the first time, then by the second; a round
# that is rejected doubles it, one that blew up multiplies it by ten.
_SEARCH, _GROWTH, _REJECTED, _BLOWN_UP = 2.0, 1.1, 2.0, 10.0
_BLOWS_UP = 3.0  # times the largest of the last losses
_LEAST = 1e-8  # below which a gradient is as good as none


def start(theta: Tree, penalty: float) -> dict[str, Tree]:
    """What the platform remembers before the first round.

    Args:
        theta: θ¹.
        penalty: ρ to begin with; any positive number will do, see `step`.
    """
    some = next(iter(theta.values()))
    zero = torch.zeros((), dtype=some.dtype, device=some.device)
    return {
        "accepted": theta,
        "average": theta,
        "dual": tree.zeros_like(theta),
        "contribution": tree.zeros_like(theta),
        "squares": tree.zeros_like(theta),
        "search": {
            "penalty": zero + penalty,
            "rounds": zero,
            "searching": zero + 1,
            "losses": zero.new_full((_WINDOW,), torch.inf),
            "smooth": zero,
            "best": zero + torch.inf,
            "last": zero + torch.inf,
            "noise": zero,
        },
    }


def step(
    theta: Tree, memory: Mapping[str, Tree], dual: Tree, loss: Tensor, share: Tensor
) -> tuple[Tree, dict[str, Tree], Metrics]:
    """The next θ to try, from Σy_i and the loss at the one that was tried.

    With one local step y_i = −w_i G_i(θ) whatever ρ is, so that the penalty is the platform's own
    affair: it may differ from round to round and from parameter to parameter. With Y = Σy_i:

        V = 2Y − Y⁻                            ADMM's Σv_i (Y in the first round)
        m = 0.9 m⁻ + 0.1 V                     contributions, averaged over rounds
        q = 0.95 q⁻ + 0.05 Y²                  how large a parameter's gradient is
        θ⁺ = θ + m / P,   P = ρ √q             (both means corrected for their start at zero)

    so that 1/ρ is about how far a parameter moves in a round, whatever the scale of the loss. Every
    round ρ falls by a tenth (by half until a round is rejected for the first time).

    Whether θ⁺ was good is known when the next round tells F(θ⁺). If that is not finite, or larger
    than the last five accepted losses and a tenth, or than twice the best smoothed loss, the round
    is taken back: θ⁺ = θ + Y / P from the last accepted θ, with a ρ twice as large (ten times, if
    the loss has tripled or is not finite) and no memory of older contributions. Y points downhill
    and P is positive, so a small enough step lowers a smooth loss, and every search ends. Where
    only some nodes were counted their loss says less: the bounds widen by twice the mean rise of
    the losses from round to round (as a share of the loss).

    Args:
        theta: where the nodes were.
        memory: from `start` or the last round.
        dual: Y = −∇F(θ).
        loss: F(θ).
        share: Σw_i over the nodes that were counted, 1 if all were.

    Returns:
        The next θ, the new memory, and numbers to log, the loss being that of the accepted θ.
    """
    search, before = memory["search"], memory["dual"]
    first = search["rounds"] == 0
    known = torch.where(search["losses"].isinf(), -torch.inf, search["losses"]).max()
    finite = loss.isfinite() & tree.squared_norm(dual).isfinite()
    slack = torch.where(share < 1 - 1e-3, 1 + 2 * search["noise"], 1.0)
    bound = torch.minimum((slack + _SHARE) * known, slack * _MOST * search["best"])
    accepted = finite & (first | (loss <= bound))
    blown_up = ~finite | (loss > slack * _BLOWS_UP * known)

    def new(a: Tree, b: Tree) -> Tree:
        return {name: torch.where(accepted, leaf, b[name]) for name, leaf in a.items()}

    place, dual = new(theta, memory["accepted"]), new(dual, before)
    rounds = search["rounds"] + accepted
    v = {n: torch.where(first, y, 2 * y - before[n]) for n, y in dual.items()}
    m = tree.combine(_MOMENTUM, memory["contribution"], 1 - _MOMENTUM, v)
    q = {n: _MEMORY * memory["squares"][n] + (1 - _MEMORY) * y.square() for n, y in dual.items()}
    started = 1 - _MOMENTUM ** rounds.clamp(min=1)
    m, q = new(m, tree.scale(started, dual)), new(q, memory["squares"])

    searching = torch.where(accepted, search["searching"], torch.zeros_like(search["searching"]))
    fall = torch.where(first, 1.0, torch.where(searching > 0, _SEARCH, _GROWTH))
    raised = torch.where(blown_up, _BLOWN_UP, _REJECTED)
    rho = torch.where(accepted, search["penalty"] / fall, search["penalty"] * raised)
    known_squares = 1 - _MEMORY ** rounds.clamp(min=1)
    moved = {
        n: leaf / started / (rho * ((q[n] / known_squares).sqrt() + _LEAST))
        for n, leaf in m.items()
    }

    smooth = torch.where(first, loss, _SMOOTHING * search["smooth"] + (1 - _SMOOTHING) * loss)
    smooth = torch.where(accepted, smooth, search["smooth"])
    best = torch.where(accepted, torch.minimum(search["best"], smooth), search["best"])
    rise = torch.where(finite & ~first, (loss / search["last"] - 1).clamp(0, 1), 0.0)
    noise = torch.where(finite & ~first, 0.9 * search["noise"] + 0.1 * rise, search["noise"])
    losses = torch.cat([loss.unsqueeze(0), search["losses"][:-1]])
    losses = torch.where(accepted, losses, search["losses"])
    mean = tree.combine(_MOMENTUM, memory["average"], 1 - _MOMENTUM, place)
    updated = {
        "accepted": place,
        "average": new(mean, memory["average"]),
        "dual": dual,
        "contribution": m,
        "squares": q,
        "search": {
            "penalty": rho,
            "rounds": rounds,
            "searching": searching,
            "losses": losses,
            "smooth": smooth,
            "best": best,
            "last": torch.where(finite, loss, search["last"]),
            "noise": noise,
        },
    }
    numbers = {
        "meta_loss": losses[0],
        "gradient_norm": tree.squared_norm(dual).sqrt(),
        "step_norm": tree.squared_norm(moved).sqrt(),
        "penalty": rho,
        "rejected": 1 - accepted.to(loss.dtype),
    }
    return tree.add(place, moved), updated, numbers
