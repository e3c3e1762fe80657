"""The guard of the sum: who may not add to it, and why.

A contribution v (a node's, or an edge's sum over its nodes) stands for a share Σw of all samples,
so that ‖v‖/Σw is comparable between small and large ones. It is judged against the median of all:

    refused     a name, shape or number is wrong, or the norm is above `factor` times the median,
                or its direction is opposite to that of the others
    clipped     instead of refused, the contribution is scaled down to that bound

The platform judges its edges and every edge its own nodes, by the same rule. A median holds as long
as fewer than half of them lie. What lies within the bounds is let through.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedmeta.algorithms.algorithm import Contribution
from fedmeta.core import tree
from fedmeta.core.errors import require, require_choice, require_whole
from fedmeta.core.serialization import LATER
from fedmeta.core.tree import Tree, map_leaves
from fedmeta.uplink.robust_sum import RobustSum, stacked

_EXCESS = 1e-3  # what rounding may add to a weight


@dataclass(frozen=True)
class Guard:
    """What becomes of contributions that are far larger than the others.

    Args:
        outliers: "keep" all, "reject" those above the bound, or "clip" them to it.
        factor: the bound, in medians of ‖v‖/Σw; more than 1. A node that comes back after a while
            sends up to twice as much as the others (v = 2y − y⁻), so 2 would be too strict.
        direction: least cosine between a contribution and those of all others, each of length 1;
            −1: any direction will do. Judged where most agree, with cosines of at least −direction:
            edges that know other classes may honestly pull in opposite directions. Near the end
            few agree; there the last verdict stands.
        fewest: contributions that there must be before any is judged: who of two lies nobody can
            say, and medians of few are easily far from one of them.

    Example:
        >>> Guard("reject").scales(torch.tensor([1.0, 1.5, 2.0, 90.0, torch.nan]))
        tensor([1., 1., 1., 0., 0.])
    """

    outliers: Literal["keep", "reject", "clip"] = "keep"
    factor: float = 4.0
    direction: float = field(default=-1.0, metadata=LATER)
    fewest: int = field(default=1, metadata=LATER)

    def __post_init__(self) -> None:
        require_choice("guard.outliers", self.outliers, ("keep", "reject", "clip"))
        finite = 1 < self.factor < float("inf")
        require(finite, "guard.factor", self.factor, "a number greater than 1")
        backwards = -1 <= self.direction <= 0
        require(backwards, "guard.direction", self.direction, "a cosine from -1 to 0")
        require_whole("guard.fewest", self.fewest, 1)

    @property
    def looks_at_directions(self) -> bool:
        """Whether `scales` needs cosines."""
        return self.outliers != "keep" and self.direction > -1

    def opposite(self, units: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Whose direction is opposite to that of the others: as it was when last most agreed.

        Who pulls against the sum of all is set aside first. Those that are left must be more than
        half, and agree with each other; then all are held against them.

        Args:
            units: contributions of length 1, (n, d), see `directions`.
            before: the last verdict, (n,).

        Returns:
            The verdict, and the cosines that it rests on, both (n,).

        Example:
            >>> guard, east, north = Guard("reject", direction=-0.2), [1.0, 0.0], [0.0, 1.0]
            >>> units, nobody = torch.tensor([[-1.0, 0.0], east, east, north]), torch.zeros(4) > 0
            >>> found, _ = guard.opposite(units, nobody)
            >>> apart = torch.tensor([east, north, [-1.0, 0.0], [0.0, -1.0]])
            >>> found.tolist(), guard.opposite(apart, found)[0].tolist()
            ([True, False, False, False], [True, False, False, False])
        """
        there = (units != 0).any(1)
        rest = there & (cosines(units, there) >= self.direction)
        found = cosines(units, rest)
        ranked = torch.where(rest, found, torch.inf).sort().values
        # Where most do not agree themselves, the way of the others is no yardstick.
        agreed = (ranked.gather(0, _middle(rest)) >= -self.direction) & (
            2 * rest.sum() > there.sum()
        )
        judged = there & agreed & (there.sum() >= self.fewest)
        return torch.where(judged, found < self.direction, before.to(found.device)), found

    def scales(self, norms: Tensor, opposite: Tensor | None = None) -> Tensor:
        """What each contribution is multiplied by: 1, 0 (refused), or bound/norm (clipped).

        Args:
            norms: ‖v‖/Σw of all, (n,); NaN or ∞ where a number is.
            opposite: whose direction is, (n,), see `opposite`; None: nobody asks.
        """
        finite = norms.isfinite()
        if self.outliers == "keep":
            return finite.to(norms.dtype)
        ascending = torch.where(finite, norms, torch.inf).sort().values
        bound = self.factor * ascending.gather(0, _middle(finite))
        bound = torch.where(finite.sum() < self.fewest, torch.inf, bound)
        above = torch.zeros_like(norms)
        if self.outliers == "clip":
            above = bound / norms
        inside = torch.where(norms <= bound, torch.ones_like(norms), above)
        kept = torch.where(finite, inside, torch.zeros_like(norms))
        if opposite is not None:
            kept = torch.where(self.credible(kept > 0, finite, opposite), 0.0, kept)
        return kept

    def credible(self, inside: Tensor, finite: Tensor, opposite: Tensor) -> Tensor:
        """Whose direction is opposite, or nobody's where more than half would be refused in all.

        Late in training honest contributions are mostly noise, and of a few some seem to agree. A
        guard that leaves fewer than half has misunderstood; by norms alone it always leaves half.

        Args:
            inside: whose norm is within the bound, (n,).
            finite: who is judged at all, (n,).
            opposite: see `opposite`.

        Example:
            >>> five, against = torch.ones(5) > 0, torch.tensor([True, True, False, False, False])
            >>> Guard().credible(five, five, against).any(), Guard().credible(~against, five,
            ...     torch.tensor([False, False, False, False, True])).any()
            (tensor(True), tensor(False))
        """
        left = (inside & ~opposite).sum()
        return opposite & (2 * left >= finite.sum())


def _middle(finite: Tensor) -> Tensor:
    """Where the median of those that are finite stands among all in ascending order, (1,).

    Of an even number the lower of the two in the middle, which is the stricter one. (A median of
    PyTorch's looks at values, so that a GPU could not record a round with it.)
    """
    return ((finite.sum() - 1) // 2).clamp(min=0).unsqueeze(0)


def relative_norm(contribution: Contribution, share: Tensor | float) -> Tensor:
    """‖v‖/Σw, and NaN or ∞ if any number of the contribution is."""
    odd = tree.zero_or_nan({"weight": contribution.weight, **contribution.metrics})
    return tree.squared_norm(contribution.update).sqrt() / share + odd


def directions(contributions: Contribution) -> Tensor:
    """Contributions along a first axis as vectors of length 1, (n, d); zero if a number is odd."""
    leaves = contributions.update.values()
    flat = torch.cat([leaf.reshape(len(leaf), -1) for leaf in leaves], dim=1)
    flat = torch.where(flat.isfinite().all(1, keepdim=True), flat, torch.zeros_like(flat))
    # Divided twice, so that no square of a number overflows.
    tiny = torch.finfo(flat.dtype).tiny
    flat = flat / flat.abs().amax(1, keepdim=True).clamp(min=tiny)
    units: Tensor = flat / flat.norm(dim=1, keepdim=True).clamp(min=tiny)
    return units


def cosines(units: Tensor, among: Tensor) -> Tensor:
    """Between each vector of length 1 and the sum of the others that are `among` those that count.

    Example:
        >>> units = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
        >>> cosines(units, torch.tensor([True, True, True]))
        tensor([ 0.,  0., -1.])
    """
    own = among.to(units).unsqueeze(1) * units
    others = own.sum(0) - own
    tiny = torch.finfo(units.dtype).tiny
    found: Tensor = (units * others).sum(1) / others.norm(dim=1).clamp(min=tiny)
    return found


def scaled(contributions: Contribution, scales: Tensor) -> Contribution:
    """Contributions along a first axis, each times its scale; of the refused nothing is left.

    A clipped one keeps its weight and its numbers: it was counted.
    """

    def kept(leaf: Tensor) -> Tensor:
        row = _along(scales, leaf)
        return torch.where(row > 0, leaf, torch.zeros_like(leaf))

    whole: Contribution = map_leaves(kept, contributions)
    update = {name: leaf * _along(scales, leaf) for name, leaf in whole.update.items()}
    return whole._replace(update=update)


def chosen(scales: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """A node's new state where it was counted, its old one where it was refused."""
    return torch.where(_along(scales, new) > 0, new, old)


def _along(scales: Tensor, leaf: Tensor) -> Tensor:
    return scales.reshape(-1, *[1] * (leaf.ndim - 1)).to(leaf.device)


class Reply(NamedTuple):
    """What an edge has sent.

    Args:
        contribution: Σ over its nodes, as received: nothing about it is known yet.
        share: Σw_i of the nodes that it has counted, as the platform knows it.
        weight: the largest Σρ_i that it can have, as the platform knows it.
    """

    contribution: Contribution
    share: float
    weight: float


class Verdict(NamedTuple):
    """What the platform may add up, and what it may not.

    Args:
        accepted: contributions by name of the edge, in the order given; clipped if need be.
        refused: the reason, by name.
        clipped: what was left of a contribution, by name.
        impossible: who was refused whatever the others say.
        opposite: of whose direction it is known whether it is opposite to that of the others.
    """

    accepted: dict[str, Contribution]
    refused: dict[str, str]
    clipped: dict[str, float]
    impossible: tuple[str, ...] = ()
    opposite: Mapping[str, bool] = {}


def judge(
    guard: Guard,
    replies: Mapping[str, Reply],
    theta: Tree,
    robust: RobustSum = RobustSum(),
    opposite: Collection[str] = (),
) -> Verdict:
    """Judge what edges have sent, by name, in answer to a theta of these names and shapes.

    A robust sum may leave out further ones, see `RobustSum.selected`. `opposite` names those whose
    direction was opposite to that of the others when last most agreed.

    Example:
        >>> theta = {"a": torch.zeros(2)}
        >>> def reply(*values):
        ...     one = Contribution({"a": torch.tensor(values)}, torch.tensor(1.0), {})
        ...     return Reply(one, share=1.0, weight=1.0)
        >>> replies = {"x": reply(1.0, 0.0), "y": reply(0.0, 1.0), "z": reply(60.0, 80.0)}
        >>> judge(Guard("reject"), replies, theta).refused
        {'z': '‖v‖/Σw is 100, more than 4 times the median 1'}
    """
    refused = {}
    for name, reply in replies.items():
        if (reason := _wrong(reply, theta)) is not None:
            refused[name] = reason
    impossible = tuple(refused)
    sound = {name: reply for name, reply in replies.items() if name not in refused}
    if not sound:
        return Verdict({}, refused, {}, impossible)
    norms = torch.stack(
        [relative_norm(one.contribution, one.share).to(torch.float64) for one in sound.values()]
    )
    accepted, clipped, median = {}, {}, float(norms.median())
    rows = stacked([one.contribution for one in sound.values()])
    against, towards = torch.zeros(len(sound), dtype=torch.bool), torch.zeros(len(sound))
    if guard.looks_at_directions:
        before = torch.tensor([name in opposite for name in sound])
        against, towards = guard.opposite(directions(rows), before)
    scales = guard.scales(norms, against.to(norms.device)).tolist()
    by_norm = guard.scales(norms).tolist()
    for place, (name, reply) in enumerate(sound.items()):
        scale, norm = scales[place], float(norms[place])
        if scale == 0 < by_norm[place]:
            refused[name] = (
                f"its direction is opposite to the others', or was when last most agreed (cosine "
                f"{float(towards[place]):.2f}, {guard.direction:g} at least is wanted)"
            )
            continue
        if scale == 0:
            refused[name] = (
                f"‖v‖/Σw is {norm:.3g}, more than {guard.factor:g} times the median {median:.3g}"
            )
            continue
        one = reply.contribution
        if scale < 1:
            one, clipped[name] = one._replace(update=tree.scale(scale, one.update)), scale
        accepted[name] = one
    if robust.method == "krum" and accepted:
        shares = torch.tensor([sound[name].share for name in accepted], dtype=torch.float64)
        everyone = torch.ones(len(accepted), dtype=torch.bool)
        together, gone = stacked(list(accepted.values())), len(replies) - len(accepted)
        kept = robust.selected(together, shares, everyone, gone)
        for name, inside in zip(list(accepted), kept.tolist(), strict=True):
            if not inside:
                del accepted[name]
                refused[name] = "it is farther from the others than they are from each other"
    ordered = {name: refused[name] for name in replies if name in refused}
    found = dict(zip(sound, against.tolist(), strict=True))
    return Verdict(accepted, ordered, clipped, impossible, found)


def _wrong(reply: Reply, theta: Tree) -> str | None:
    """What cannot be right about a reply, whatever the others say."""
    update, weight, metrics = reply.contribution
    if missing := [name for name in theta if name not in update]:
        return f"parameter {missing[0]!r} is missing"
    if unknown := [name for name in update if name not in theta]:
        return f"parameter {unknown[0]!r} is unknown"
    for name, leaf in theta.items():
        if update[name].shape != leaf.shape:
            return f"{name!r} has shape {tuple(update[name].shape)}, not {tuple(leaf.shape)}"
        if update[name].dtype != leaf.dtype:
            return f"{name!r} is {update[name].dtype}, not {leaf.dtype}"
    for name, leaf in {**update, "weight": weight, **metrics}.items():
        if not bool(leaf.isfinite().all()):
            return f"{name!r} is not finite"
    if any(leaf.ndim > 0 for leaf in (weight, *metrics.values())):
        return "its weight or a metric is not one number"
    if not 0 < float(weight) <= reply.weight * (1 + _EXCESS):
        return f"its weight is {float(weight):.4g}, not above 0 and at most {reply.weight:.4g}"
    if not 0 < reply.share <= 1 + _EXCESS:
        return f"its share of the samples is {reply.share:.4g}, not above 0 and at most 1"
    return None
