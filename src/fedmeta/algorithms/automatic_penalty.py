"""A penalty that nobody has to choose: found round by round from sums the platform has anyway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedmeta.algorithms import spectral
from fedmeta.algorithms.algorithm import Metrics
from fedmeta.core import tree
from fedmeta.core.tree import Tree

_MOMENTUM = 0.9  # contributions count for about ten rounds
# What a loss may exceed, in shares of the first loss: the largest of the last few by the first, the
# best smoothed one by the second, the least that this has ever been by the third; if by the fourth,
# it has blown up. All of them widen by the noise of the losses.
_WINDOW, _RECENT, _BEST, _LEAST_EVER, _BLOWN_UP = 5, 0.1, 0.3, 0.4, 1.0
_SMOOTHING = 0.7
# How many times what a step promised a loss must have risen to show that it was not the step.
_EXCUSED = 5.0
# What ρ is divided by: before it was too small for the first time, and later when the loss reached
# a new best; and multiplied by: when a round was rejected, and when it blew up.
_SEARCH, _PROGRESS = 2.0, 1.1
_REJECTED, _RESCUE = 2.0, 10.0
_LARGEST = 1e12  # beyond which a ρ is as good as infinite
_TINY = 1e-12  # by which nothing is divided


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
        "search": {
            "penalty": zero + penalty,
            "rounds": zero,
            "searching": zero + 1,
            "tries": zero,
            "blows": zero,
            "trusted": zero + penalty,
            "losses": zero.new_full((_WINDOW,), torch.inf),
            "smooth": zero,
            "best": zero + torch.inf,
            "least": zero + torch.inf,
            "first": zero,
            "promised": zero + torch.inf,
            "rise": zero,
            "fall": zero,
        },
    }


def step(
    theta: Tree,
    memory: Mapping[str, Tree],
    dual: Tree,
    loss: Tensor,
    share: Tensor,
    averaging: float = 0.0,
    longest: float = 0.01,
) -> tuple[Tree, dict[str, Tree], Metrics]:
    """The next θ to try, from Σy_i and the loss at the one that was tried.

    With one local step y_i = −w_i G_i(θ) whatever ρ is, so that the penalty is the platform's own
    affair: it may be another one in every round and a matrix of its own for every layer. With
    Y = Σy_i, layer by layer as a matrix:

        V = 2Y − Y⁻                            ADMM's Σv_i (Y in the first round)
        M = 0.9 M⁻ + 0.1 V                     contributions, averaged over rounds
        θ⁺ = θ + P⁻¹M,   P = ρ (M Mᵀ)^½

    P⁻¹M has the directions of M with all singular values alike, 1/ρ (`spectral`): however small a
    part of the gradient a direction is, a layer moves along it as far as along any other. So 1/ρ is
    how far what a layer puts out moves, as a share of what goes in, whatever the scale of the loss;
    never more than `longest` in a round. (Where a layer has more outputs than inputs, all of this
    in the root mean square: `spectral` has a factor for it.)

    Whether θ⁺ was good is known when the next round tells F(θ⁺). With B the best smoothed loss and
    R = F(θ¹), a round is taken back if its loss is not finite, exceeds the largest of the last five
    by R/10, exceeds the least B so far by 4R/10, or exceeds both the last one and B + 3R/10. Then
    θ⁺ = θ + P⁻¹Y from the last accepted θ, with a ρ twice as large (ten times, if the loss exceeds
    B by R or is not finite) and without older contributions. ⟨Y, P⁻¹Y⟩ > 0, so a small enough step
    lowers a smooth loss, and where losses are not noisy every search ends.

    Where samples or nodes are drawn anew losses are noisy, and a rise need not be the step's fault:

    - All bounds widen by twice the noise: the mean rise or the mean fall from the loss that was
      last taken to that of a first try, whichever is less.
    - A step promises to lower the loss by |⟨Y, θ⁺ − θ⟩|, layer by layer. If it rose by more than
      five times that, a step that is too long would have had to be twelve times too long; unless
      the loss exceeds B by R, it was noise, and stays.
    - If a second try, half as long, is no better, B was luck: B becomes what was seen, and ρ what
      it was before. But no loss is taken so that exceeds the least B so far by 4R/10: then
      contributions that point uphill (difference quotients may be that wrong) do not lead there.
    - If three tries in a row blow up, the last a hundred times as short as the first, but stay
      finite, the loss of the accepted θ was luck: ρ becomes what it was, and B, R and the least B
      what was seen. So they do if a loss stays as noise that exceeds the least B by 4R/10.

    After a good round ρ falls by half until it was too small for the first time; from then on by a
    tenth whenever B falls, and by half again where a step promises less than the noise, since then
    nothing can be learned from its loss. Where only some nodes were counted ρ falls by a tenth
    after any good round.

    Args:
        theta: where the nodes were.
        memory: from `start` or the last round.
        dual: Y = −∇F(θ).
        loss: F(θ).
        share: Σw_i over the nodes that were counted, 1 if all were.
        averaging: β of the average of accepted θ: β of what it was and 1 − β of a new one, or an
            equal share for each, while there are fewer than 1/(1 − β).
        longest: the longest step 1/ρ.

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
    v = {n: torch.where(first, y, 2 * y - before[n]) for n, y in dual.items()}
    m = tree.combine(_MOMENTUM, memory["contribution"], 1 - _MOMENTUM, v)
    # Alone, Y counts for as much as an average of that many rounds.
    rounds = (search["rounds"] + verdict.accepted).clamp(min=1)
    m = new(m, tree.scale(1 - _MOMENTUM**rounds, dual))

    rate = torch.where(verdict.accepted, (1 / rounds).clamp(min=1 - averaging), 0.0)
    average = {n: torch.lerp(leaf, place[n], rate) for n, leaf in memory["average"].items()}

    updated = _searched(search, verdict, loss)
    rho = updated["penalty"].clamp(1 / longest, _LARGEST)
    moved = tree.scale(1 / rho, spectral.directions(m))
    promised = torch.stack([(dual[n] * leaf).sum() for n, leaf in moved.items()]).abs().sum()
    numbers = {
        "meta_loss": updated["losses"][0],
        "gradient_norm": tree.squared_norm(dual).sqrt(),
        "step_norm": tree.squared_norm(moved).sqrt(),
        "penalty": rho,
        "rejected": 1 - verdict.accepted.to(loss.dtype),
    }
    after = {
        "accepted": place,
        "average": average,
        "dual": dual,
        "contribution": m,
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
        finite: it and the slope there are numbers.
        partial: only some nodes were counted.
    """

    accepted: Tensor
    bearable: Tensor
    blown_up: Tensor
    in_reach: Tensor
    finite: Tensor
    partial: Tensor


def _judged(search: Tree, loss: Tensor, finite_slope: Tensor, share: Tensor) -> _Verdict:
    first, best, losses = search["rounds"] == 0, search["best"], search["losses"]
    finite, scale, slack = loss.isfinite() & finite_slope, _scale(search), 2 * _noise(search)
    recent = torch.where(losses.isinf(), -torch.inf, losses).max()
    ceiling = torch.maximum(best + (_BEST + slack) * scale, losses[0])
    bound = torch.minimum(recent + (_RECENT + slack) * scale, ceiling)
    bearable = first | (loss <= search["least"] + (_LEAST_EVER + slack) * scale)
    blown_up = ~finite | (loss > best + (_BLOWN_UP + slack) * scale)
    excused = ~blown_up & (loss - losses[0] > _EXCUSED * search["promised"])
    return _Verdict(
        accepted=finite & (excused | (bearable & (first | (loss <= bound)))),
        bearable=finite & bearable,
        blown_up=blown_up,
        in_reach=finite & (first | excused | (loss <= ceiling)),
        finite=finite,
        partial=share < 1 - 1e-3,
    )


def _scale(search: Tree) -> Tensor:
    """R: what losses are measured by."""
    scale = torch.maximum(search["first"] - search["best"], search["first"].abs())
    return scale.clamp(min=_TINY)


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
    # Steps a hundred times as short end as far off: what the accepted θ showed was sheer luck.
    blows = torch.where(verdict.blown_up & verdict.finite, search["blows"] + 1, 0.0)
    anew = blows > 2
    # So it was if a loss stays that no step explains and that is higher than any that may stay.
    luck = anew | (accepted & ~verdict.bearable)
    searching = torch.where(anew, 1.0, _still_searching(search["searching"], verdict, again))
    unseen = search["promised"] < _noise(search) * _scale(search)
    slowly = torch.where(progress, 1 / _PROGRESS, 1.0)
    good = torch.where((searching > 0) | unseen, 1 / _SEARCH, slowly)
    bad = torch.where(verdict.blown_up, _RESCUE, _REJECTED)
    change = torch.where(accepted, torch.where(first, 1.0, good), bad)
    penalty = torch.where(again | anew, search["trusted"], search["penalty"] * change)
    smooth = torch.where(accepted | again, smooth, search["smooth"])
    smooth = torch.where(luck, loss, smooth)
    best = torch.where(accepted, torch.minimum(search["best"], smooth), search["best"])
    losses = torch.cat([loss.unsqueeze(0), search["losses"][:-1]])
    higher = torch.maximum(search["first"], loss)
    # First tries alone: a second one looks at the same place again.
    looks = ~first & (search["tries"] == 0) & ~verdict.blown_up
    rate = torch.where(looks, (1 / (1 + search["rounds"])).clamp(min=0.1), 0.0)
    went = torch.where(looks, (loss - search["losses"][0]) / _scale(search), 0.0)
    return {
        "penalty": penalty,
        "trusted": torch.where(search["tries"] > 0, search["trusted"], search["penalty"]),
        "rounds": search["rounds"] + accepted,
        "searching": searching,
        "tries": torch.where(accepted | anew, 0.0, search["tries"] + 1),
        "blows": torch.where(anew, 0.0, blows),
        "losses": torch.where(accepted | again | anew, losses, search["losses"]),
        "smooth": smooth,
        "best": torch.where(again | luck, smooth, best),
        "least": torch.where(luck, loss, torch.minimum(search["least"], best)),
        "first": torch.where(first & accepted, loss, torch.where(luck, higher, search["first"])),
        "rise": torch.lerp(search["rise"], went.clamp(0, 1), rate),
        "fall": torch.lerp(search["fall"], (-went).clamp(0, 1), rate),
    }


def _still_searching(before: Tensor, verdict: _Verdict, again: Tensor) -> Tensor:
    """1 while ρ was never too small, ½ if it may have been, 0 if it was.

    Out of reach, it may have been. A second try tells: if that is as bad, it was not ρ.
    """
    after = torch.where(verdict.accepted & (before < 1), 0.0, before)
    after = torch.where(verdict.in_reach, after, after.clamp(max=0.5))
    after = torch.where(again & (after > 0), 1.0, after)
    return torch.where(verdict.blown_up, 0.0, after)
