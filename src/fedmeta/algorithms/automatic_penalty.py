"""A penalty that nobody has to choose: found round by round from sums the platform has anyway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedmeta import tree
from fedmeta.algorithms import spectral
from fedmeta.algorithms.base import Metrics
from fedmeta.tree import Tree

# How long sums of the past count: about ten rounds of contributions, twenty of their squares.
_MOMENTUM, _MEMORY = 0.9, 0.95
# What a loss may exceed, in shares of the first loss: the largest of the last few by the first, the
# best smoothed one by the second, the least that this has ever been by the third; if by the fourth,
# it has blown up.
_WINDOW, _RECENT, _BEST, _LEAST_EVER, _BLOWN_UP = 5, 0.1, 0.3, 0.4, 1.0
_SMOOTHING = 0.7
# What ρ is divided by: before it was too small for the first time, and later when the loss reached
# a new best; and multiplied by: when a round was rejected, and when it blew up.
_SEARCH, _PROGRESS = 2.0, 1.1
_REJECTED, _RESCUE = 2.0, 10.0
# The longest step: this share of what parameters are in the mean, or of the second where that is
# small; in the spectral form, what a layer puts out moves by this share of what goes in.
_LONGEST, _SMALL = 0.05, 0.05
_LONGEST_TURN = 0.05
_EXCUSED = 5.0
_TINY = 1e-8  # below which a gradient is as good as none

Form = Literal["diagonal", "spectral"]


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
            "tries": zero,
            "losses": zero.new_full((_WINDOW,), torch.inf),
            "smooth": zero,
            "best": zero + torch.inf,
            "least": zero + torch.inf,
            "first": zero,
            "rise": zero,
            "fall": zero,
            "promised": zero + torch.inf,
        },
    }


def step(
    theta: Tree,
    memory: Mapping[str, Tree],
    dual: Tree,
    loss: Tensor,
    share: Tensor,
    averaging: float = 0.0,
    form: Form = "diagonal",
) -> tuple[Tree, dict[str, Tree], Metrics]:
    """The next θ to try, from Σy_i and the loss at the one that was tried.

    With one local step y_i = −w_i G_i(θ) whatever ρ is, so that the penalty is the platform's own
    affair: it may differ from round to round and from parameter to parameter. With Y = Σy_i:

        V = 2Y − Y⁻                            ADMM's Σv_i (Y in the first round)
        m = 0.9 m⁻ + 0.1 V                     contributions, averaged over rounds
        q = 0.95 q⁻ + 0.05 Y²                  how large a parameter's gradient is
        θ⁺ = θ + m / P,   P = ρ √q             (both means corrected for their start at zero)

    so that 1/ρ is about how far a parameter moves in a round, whatever the scale of the loss. It is
    never more than a twentieth of what parameters are in the mean (or of 0.05, where they are
    smaller).

    That is a penalty per parameter. In its spectral form P is one per layer, ρ (mmᵀ)^½ for m as a
    matrix, and P⁻¹m has the directions of m with all singular values alike (`spectral`): then 1/ρ
    is how far what a layer puts out may move as a share of what goes in, and at most a twentieth.

    Whether θ⁺ was good is known when the next round tells F(θ⁺). With B the best smoothed loss and
    R = F(θ¹), a round is taken back if its loss is not finite, exceeds the last five accepted ones
    by R/10, or exceeds both the last one and B by 3R/10. Then θ⁺ = θ + Y / P from the last accepted
    θ, with a ρ twice as large (ten times, if the loss exceeds B by R or is not finite) and without
    older contributions. Y points downhill and P is positive, so a small enough step lowers a smooth
    loss, and every search ends. Where samples or nodes are drawn anew the loss is noisy, and B may
    have been luck: if a second try is no better, B becomes what it says. But never is a loss taken
    that exceeds the least B so far by 4R/10 and twice the mean rise of losses from round to
    round, so that contributions that point uphill (difference quotients may be that wrong) do not
    lead there.

    After a good round ρ falls by half until it was too small for the first time, from then on by a
    tenth whenever B falls. Where only some nodes were counted their loss says less: the bounds
    widen by twice the mean rise of losses from round to round, and ρ falls after any good round.

    Args:
        theta: where the nodes were.
        memory: from `start` or the last round.
        dual: Y = −∇F(θ).
        loss: F(θ).
        share: Σw_i over the nodes that were counted, 1 if all were.
        averaging: β of the average of accepted θ: β of what it was and 1 − β of a new one, or an
            equal share for each, while there are fewer than 1/(1 − β).
        form: of P: "diagonal" or "spectral".

    Returns:
        The next θ, the new memory, and numbers to log, the loss being the last seen of the accepted
        θ or, after a second try, next to it.
    """
    search, before = memory["search"], memory["dual"]
    first = search["rounds"] == 0
    verdict = _judged(search, loss, tree.squared_norm(dual).isfinite(), share)

    def new(a: Tree, b: Tree) -> Tree:
        return {name: torch.where(verdict.accepted, leaf, b[name]) for name, leaf in a.items()}

    place, dual = new(theta, memory["accepted"]), new(dual, before)
    rounds = (search["rounds"] + verdict.accepted).clamp(min=1)
    started, squared = 1 - _MOMENTUM**rounds, 1 - _MEMORY**rounds
    v = {n: torch.where(first, y, 2 * y - before[n]) for n, y in dual.items()}
    m = tree.combine(_MOMENTUM, memory["contribution"], 1 - _MOMENTUM, v)
    m = new(m, tree.scale(started, dual))
    q = {n: _MEMORY * memory["squares"][n] + (1 - _MEMORY) * y.square() for n, y in dual.items()}
    q = new(q, memory["squares"])

    rate = torch.where(verdict.accepted, (1 / rounds).clamp(min=1 - averaging), 0.0)
    average = {n: torch.lerp(leaf, place[n], rate) for n, leaf in memory["average"].items()}

    updated = _searched(search, verdict, loss)
    if form == "spectral":
        rho = updated["penalty"].clamp(min=1 / _LONGEST_TURN)
        moved = tree.scale(1 / rho, spectral.directions(m))
    else:
        size = (tree.squared_norm(place) / tree.size(place)).sqrt()
        rho = torch.maximum(updated["penalty"], 1 / (_LONGEST * size.clamp(min=_SMALL)))
        deviations = {n: (leaf / squared).sqrt() + _TINY for n, leaf in q.items()}
        moved = {n: leaf / started / (rho * deviations[n]) for n, leaf in m.items()}
    promised = sum((dual[n] * leaf).sum().abs() for n, leaf in moved.items())
    numbers = {
        "meta_loss": updated["losses"][0],
        "gradient_norm": tree.squared_norm(dual).sqrt(),
        "step_norm": tree.squared_norm(moved).sqrt(),
        "promised": promised,
        "penalty": rho,
        "rejected": 1 - verdict.accepted.to(loss.dtype),
    }
    after = {
        "accepted": place,
        "average": average,
        "dual": dual,
        "contribution": m,
        "squares": q,
        "search": {**updated, "penalty": rho, "promised": promised},
    }
    return tree.add(place, moved), after, numbers


class _Verdict(NamedTuple):
    """What a loss says of the θ it was seen at, as booleans.

    Args:
        accepted: it stays.
        bearable: it may stay if a second try says so.
        blown_up: it is far off.
        in_reach: it is no sign that ρ was too small.
        partial: only some nodes were counted.
    """

    accepted: Tensor
    bearable: Tensor
    blown_up: Tensor
    in_reach: Tensor
    partial: Tensor


def _judged(search: Tree, loss: Tensor, finite_slope: Tensor, share: Tensor) -> _Verdict:
    first, best, losses = search["rounds"] == 0, search["best"], search["losses"]
    finite, partial = loss.isfinite() & finite_slope, share < 1 - 1e-3
    slack = 2 * _noise(search)
    scale = _scale(search)
    recent = torch.where(losses.isinf(), -torch.inf, losses).max()
    ceiling = torch.maximum(best + (_BEST + slack) * scale, losses[0])
    bound = torch.minimum(recent + (_RECENT + slack) * scale, ceiling)
    bearable = first | (loss <= search["least"] + (_LEAST_EVER + slack) * scale)
    excused = (loss - losses[0] > _EXCUSED * search["promised"]) & (loss <= best + (_BLOWN_UP + slack) * scale)
    return _Verdict(
        accepted=finite & (excused | (bearable & (first | (loss <= bound)))),
        bearable=finite & bearable,
        blown_up=~finite | (loss > best + (_BLOWN_UP + slack) * scale),
        in_reach=finite & (first | excused | (loss <= ceiling)),
        partial=partial,
    )


def _scale(search: Tree) -> Tensor:
    """R: what losses are measured by."""
    return torch.maximum(search["first"] - search["best"], search["first"].abs())


def _noise(search: Tree) -> Tensor:
    """How far losses go up and down again, in shares of R: what no trend explains."""
    return torch.minimum(search["rise"], search["fall"])


def _searched(search: Tree, verdict: _Verdict, loss: Tensor) -> Tree:
    """ρ and what the search remembers after a verdict."""
    accepted, first = verdict.accepted, search["rounds"] == 0
    smooth = torch.where(first, loss, _SMOOTHING * search["smooth"] + (1 - _SMOOTHING) * loss)
    progress = verdict.partial | (smooth < search["best"])
    # A second try lies so near the accepted θ that its loss is a second look at the same place.
    again = ~accepted & verdict.bearable & ~verdict.blown_up & (search["tries"] > 0)
    searching = torch.where(accepted & (search["searching"] < 1), 0.0, search["searching"])
    searching = torch.where(verdict.in_reach, searching, searching.clamp(max=0.5))
    searching = torch.where(again & (searching > 0), 1.0, searching)
    searching = torch.where(verdict.blown_up, 0.0, searching)
    unseen = search["promised"] < _noise(search) * _scale(search)
    good = torch.where((searching > 0) | unseen, 1 / _SEARCH, torch.where(progress, 1 / _PROGRESS, 1.0))
    bad = torch.where(verdict.blown_up, _RESCUE, torch.where(again, 1 / _REJECTED, _REJECTED))
    change = torch.where(accepted, torch.where(first, 1.0, good), bad)
    smooth = torch.where(accepted | again, smooth, search["smooth"])
    best = torch.where(accepted, torch.minimum(search["best"], smooth), search["best"])
    losses = torch.cat([loss.unsqueeze(0), search["losses"][:-1]])
    seen = loss.isfinite()
    looks = seen & ~first & (search["tries"] == 0) & ~verdict.blown_up
    rate = torch.where(looks, (1 / (1 + search["rounds"])).clamp(min=0.1), 0.0)
    change_of_loss = torch.where(looks, (loss - search["losses"][0]) / _scale(search), 0.0)
    return {
        "penalty": search["penalty"] * change,
        "rounds": search["rounds"] + accepted,
        "searching": searching,
        "tries": torch.where(accepted, 0.0, search["tries"] + 1),
        "losses": torch.where(accepted | again, losses, search["losses"]),
        "smooth": smooth,
        "best": torch.where(again, smooth, best),
        "least": torch.minimum(search["least"], best),
        "first": torch.where(first & accepted, loss, search["first"]),
        "rise": torch.lerp(search["rise"], change_of_loss.clamp(0, 1), rate),
        "fall": torch.lerp(search["fall"], change_of_loss.clamp(-1, 0).neg(), rate),
    }
