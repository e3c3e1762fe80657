"""How long a step is, found by accepting and rejecting rounds: the rule on one page.

A step is θ⁺ = θ + D/ρ, with D a direction of fixed length (`directions`). What a step did is known
one round later, when the nodes tell the loss F(θ⁺). So every round first judges the last step, and
then makes the next one. Everything is found from sums that the platform has anyway: the mean update
Δ = −∇F(θ), the loss F(θ), and the share of the nodes that were counted.

    B  best smoothed loss so far (0.7 of the old, 0.3 of the new)      R  the first loss
    N  noise: the mean rise or the mean fall between tries, whichever is less, as a share of R

1. **Judge.** The round is accepted if its loss is finite and
       ≤ largest of the last five + R/10,
       ≤ B + 3R/10, or not above the last one,
       ≤ least B ever + 4R/10.
   It has blown up if its loss is not finite or > B + R. All of these bounds widen by 2N·R.
2. **Accepted:** θ stays, and the step goes on along D. ρ is halved until it was too small for the
   first time; from then on it falls by a tenth whenever B falls.
3. **Rejected:** back to the last accepted θ; D restarts from its Δ alone, which points downhill,
   and ρ doubles (tenfold, if it has blown up). A small enough step along it lowers a smooth loss,
   so where losses are not noisy every search ends.
4. 1/ρ never exceeds `longest`.

Where samples or nodes are drawn anew losses are noisy, and a rise need not be the step's fault:

5. A step promises to lower the loss by |⟨Δ, θ⁺ − θ⟩|, part by part (`directions`). A rise by more
   than five times that would take a step twelve times too long: unless it has blown up it is
   noise, and accepted.
6. If a second try, half as long, is no better, B was luck: B becomes what was seen, and ρ what it
   was before the tries. But no loss is believed so that exceeds the least B by 4R/10: updates that
   point uphill (difference quotients may be that wrong) do not lead there.
7. If three tries in a row blow up but stay finite, the last a hundred times as short as the first,
   the loss of the accepted θ was luck: ρ becomes what it was, and B, R and the least B what was
   seen. So they do if a loss is accepted as noise that exceeds the least B by 4R/10.
8. Where a step promises less than the noise, nothing can be learned from its loss: ρ is halved.
   Where only some nodes were counted ρ falls by a tenth after any accepted round.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

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


class Search(NamedTuple):
    """What the search remembers from round to round, as scalars of θ's type.

    Args:
        penalty: ρ of the step on trial.
        rounds: how many were accepted.
        searching: 1 while ρ was never too small, ½ if it may have been, 0 if it was.
        tries: how many were rejected since the last accepted one.
        blows: how many of them, in a row, blew up and stayed finite.
        trusted: ρ before the tries.
        losses: the last five that were taken, newest first.
        smooth: smoothed loss.
        best: B.
        least: the least B ever.
        first: R before it is measured against B, see `_scale`.
        promised: by how much the step on trial should lower the loss.
        rise, fall: mean rise and fall of first tries, in shares of R.
    """

    penalty: Tensor
    rounds: Tensor
    searching: Tensor
    tries: Tensor
    blows: Tensor
    trusted: Tensor
    losses: Tensor
    smooth: Tensor
    best: Tensor
    least: Tensor
    first: Tensor
    promised: Tensor
    rise: Tensor
    fall: Tensor


class Verdict(NamedTuple):
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


def begin(penalty: float, like: Tensor) -> Search:
    """The search before the first round.

    Args:
        penalty: ρ to begin with; any positive number will do.
        like: a tensor of the type and on the device that its own shall have.

    Example:
        >>> float(begin(1000.0, torch.zeros(3)).penalty)
        1000.0
    """
    zero = torch.zeros((), dtype=like.dtype, device=like.device)
    return Search(
        penalty=zero + penalty,
        rounds=zero,
        searching=zero + 1,
        tries=zero,
        blows=zero,
        trusted=zero + penalty,
        losses=zero.new_full((_WINDOW,), torch.inf),
        smooth=zero,
        best=zero + torch.inf,
        least=zero + torch.inf,
        first=zero,
        promised=zero + torch.inf,
        rise=zero,
        fall=zero,
    )


def judged(search: Search, loss: Tensor, finite_slope: Tensor, share: Tensor) -> Verdict:
    """What a loss says of the step on trial (1, 5).

    Args:
        search: before.
        loss: F(θ).
        finite_slope: whether Δ is finite.
        share: Σw_i of the nodes that were counted, 1 if all were.
    """
    first, best, losses = search.rounds == 0, search.best, search.losses
    finite, scale, slack = loss.isfinite() & finite_slope, _scale(search), 2 * _noise(search)
    recent = torch.where(losses.isinf(), -torch.inf, losses).max()
    ceiling = torch.maximum(best + (_BEST + slack) * scale, losses[0])
    bound = torch.minimum(recent + (_RECENT + slack) * scale, ceiling)
    bearable = first | (loss <= search.least + (_LEAST_EVER + slack) * scale)
    blown_up = ~finite | (loss > best + (_BLOWN_UP + slack) * scale)
    excused = ~blown_up & (loss - losses[0] > _EXCUSED * search.promised)
    return Verdict(
        accepted=finite & (excused | (bearable & (first | (loss <= bound)))),
        bearable=finite & bearable,
        blown_up=blown_up,
        in_reach=finite & (first | excused | (loss <= ceiling)),
        finite=finite,
        partial=share < 1 - 1e-3,
    )


def advanced(search: Search, verdict: Verdict, loss: Tensor, longest: float) -> Search:
    """ρ and what the search remembers after a verdict (2, 3, 4, 6, 7, 8).

    Args:
        search: before.
        verdict: of `judged`.
        loss: F(θ).
        longest: the longest step 1/ρ.
    """
    accepted, first = verdict.accepted, search.rounds == 0
    smooth = torch.where(first, loss, _SMOOTHING * search.smooth + (1 - _SMOOTHING) * loss)
    progress = verdict.partial | (smooth < search.best)
    # A second try lies so near the accepted θ that its loss is a second look at the same place.
    again = ~accepted & verdict.bearable & ~verdict.blown_up & (search.tries > 0)
    # Steps a hundred times as short end as far off: what the accepted θ showed was sheer luck.
    blows = torch.where(verdict.blown_up & verdict.finite, search.blows + 1, 0.0)
    anew = blows > 2
    # So it was if a loss stays that no step explains and that is higher than any that may stay.
    luck = anew | (accepted & ~verdict.bearable)
    searching = torch.where(anew, 1.0, _still_searching(search.searching, verdict, again))
    unseen = search.promised < _noise(search) * _scale(search)
    slowly = torch.where(progress, 1 / _PROGRESS, 1.0)
    good = torch.where((searching > 0) | unseen, 1 / _SEARCH, slowly)
    bad = torch.where(verdict.blown_up, _RESCUE, _REJECTED)
    change = torch.where(accepted, torch.where(first, 1.0, good), bad)
    penalty = torch.where(again | anew, search.trusted, search.penalty * change)
    smooth = torch.where(accepted | again, smooth, search.smooth)
    smooth = torch.where(luck, loss, smooth)
    best = torch.where(accepted, torch.minimum(search.best, smooth), search.best)
    losses = torch.cat([loss.unsqueeze(0), search.losses[:-1]])
    higher = torch.maximum(search.first, loss)
    # First tries alone: a second one looks at the same place again.
    looks = ~first & (search.tries == 0) & ~verdict.blown_up
    rate = torch.where(looks, (1 / (1 + search.rounds)).clamp(min=0.1), 0.0)
    went = torch.where(looks, (loss - search.losses[0]) / _scale(search), 0.0)
    return Search(
        penalty=penalty.clamp(1 / longest, _LARGEST),
        trusted=torch.where(search.tries > 0, search.trusted, search.penalty),
        rounds=search.rounds + accepted,
        searching=searching,
        tries=torch.where(accepted | anew, 0.0, search.tries + 1),
        blows=torch.where(anew, 0.0, blows),
        losses=torch.where(accepted | again | anew, losses, search.losses),
        smooth=smooth,
        best=torch.where(again | luck, smooth, best),
        least=torch.where(luck, loss, torch.minimum(search.least, best)),
        first=torch.where(first & accepted, loss, torch.where(luck, higher, search.first)),
        promised=search.promised,
        rise=torch.lerp(search.rise, went.clamp(0, 1), rate),
        fall=torch.lerp(search.fall, (-went).clamp(0, 1), rate),
    )


def _scale(search: Search) -> Tensor:
    """R: what losses are measured by."""
    scale = torch.maximum(search.first - search.best, search.first.abs())
    return scale.clamp(min=_TINY)


def _noise(search: Search) -> Tensor:
    """N: how far losses go up and down again, in shares of R: what no trend explains."""
    return torch.minimum(search.rise, search.fall)


def _still_searching(before: Tensor, verdict: Verdict, again: Tensor) -> Tensor:
    """1 while ρ was never too small, ½ if it may have been, 0 if it was.

    Out of reach, it may have been. A second try tells: if that is as bad, it was not ρ.
    """
    after = torch.where(verdict.accepted & (before < 1), 0.0, before)
    after = torch.where(verdict.in_reach, after, after.clamp(max=0.5))
    after = torch.where(again & (after > 0), 1.0, after)
    return torch.where(verdict.blown_up, 0.0, after)
