"""ADMM-FedMeta: federated meta-learning by inexact ADMM (Yue et al., MobiHoc 2021)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedmeta.algorithms import local_duals
from fedmeta.algorithms.algorithm import (
    Contribution,
    Fleet,
    LinearStep,
    Metrics,
    NodeState,
    PlatformState,
    mean_update,
)
from fedmeta.algorithms.learners import MetaLearner
from fedmeta.algorithms.platform_optimizer import AUTOMATIC, PlatformOptimizer
from fedmeta.core import randomness, tree
from fedmeta.core.errors import (
    SettingError,
    require,
    require_choice,
    require_positive,
    require_whole,
)
from fedmeta.core.meta_gradient import meta_gradient
from fedmeta.core.objective import RECOMMENDED, Adaptation, Facts, Objective
from fedmeta.core.randomness import Purpose
from fedmeta.core.sample_sets import NodeData, Resplit
from fedmeta.core.step_sizes import split
from fedmeta.core.tree import Tree
from fedmeta.priors import Regularizer, with_proximal

_WITH_PENALTY = frozenset({"penalty_unit", "local_step_size", "platform", "rule", "dual_deviation"})


@dataclass(frozen=True)
class ADMMFedMeta(MetaLearner):
    """Inexact-ADMM federated meta-learning: one closed-form step per node and round.

    Node, from θ and its own dual y⁻:   θ_i = θ − (y⁻ + w G(θ)) / ρ      G the meta-gradient
                                        y   = y⁻ + ρ (θ_i − θ)
    It sends the one vector             v   = 2y − y⁻  =  (y + ρθ_i) − ρθ
    Platform:                           θ⁺  = θ + [Σ v_i − λ∇D(θ, θ_p)] / Σ ρ_i

    With K local steps of size η the dual is reached by z⁰ = y⁻,
    z^{k+1} = (1 − ηρ) z^k − ηρ w G(θ + (z^k − y⁻)/ρ), y = z^K; this is gradient descent on the
    augmented Lagrangian in θ_i, written in z = y⁻ + ρ(θ_i − θ). For K = 1, η = 1/ρ it is y = −wG,
    which does not depend on ρ. So with penalty "auto" and K = 1 a node sends y itself and remembers
    nothing; with K > 1 it finds ρ_i and η by itself (`local_duals`; with η = 1/ρ the steps above
    diverge wherever ρ is less than w times the smoothness of F_i) and sends y. The penalty is the
    platform's own affair: its `server` takes a step along Σv_i = 2Y − Y⁻, Y = Σy_i, and finds the
    length 1/ρ as it goes.

    Args:
        inner, curvature, difference, resplit: see `MetaLearner`.
        penalty: "auto", or ρ > 0 as in the paper, one number or one per node name.
        penalty_unit: "node": ρ_i is `penalty`; "weight": ρ_i = w_i·penalty (and η_i = η/w_i), so
            that Σρ_i = penalty whatever the number of nodes.
        local_steps: K ≥ 1.
        local_step_size: η > 0; None is 1/ρ_i.
        platform: "linearised" (the paper's) or "proximal" (the authors' code; stable for any λ).
        rule: what a round with missing nodes does: "participants" averages those counted; "stale"
            keeps the last counted contribution of the others.
        dual_deviation: σ of a truncated normal y⁰; 0 starts from zero.
        prior: λ, θ_p and the divergence, or None.
        server: the platform's step under "auto", a `PlatformOptimizer` that finds its own length;
            by default orthogonal directions and an average of the accepted θ. With
            P = ρ (M Mᵀ)^½ and M the mean of V = 2Y − Y⁻ over some ten rounds, its step is P⁻¹M: a
            penalty matrix for every layer.
        extrapolate: under "auto" V = 2Y − Y⁻ as in ADMM; otherwise V = Y.
        duals: under "auto" with K > 1 a node remembers its dual; otherwise it starts from 0 in
            every round, and local steps are proximal ones.

    Example:
        >>> ADMMFedMeta(penalty=0.3).passes
        Passes(support=3, query=1)

    Reference: Yue, Ren, Xin, Lin, Zhang: Inexact-ADMM Based Federated Meta-Learning for Fast and
    Continual Edge Learning, MobiHoc 2021, algorithms 1 and 2.
    """

    name: ClassVar[str] = "admm-fedmeta"
    remedy: ClassVar[str] = (
        "raise the penalty ρ (each doubling halves the step) or lower the inner step size"
    )

    inner: Adaptation = RECOMMENDED
    penalty: float | Mapping[str, float] | Literal["auto"] = "auto"
    penalty_unit: Literal["node", "weight"] = "node"
    local_steps: int = 1
    local_step_size: float | None = None
    platform: Literal["linearised", "proximal"] = "linearised"
    rule: Literal["participants", "stale"] = "participants"
    dual_deviation: float = 0.0
    prior: Regularizer | None = None
    server: PlatformOptimizer | str = field(default=AUTOMATIC, kw_only=True)
    extrapolate: bool = field(default=True, kw_only=True)
    resplit: Resplit = field(default="classes", kw_only=True)
    duals: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("penalty_unit", self.penalty_unit, ("node", "weight"))
        require_whole("local_steps", self.local_steps, 1)
        if self.local_step_size is not None:
            require_positive("local_step_size", self.local_step_size)
        require_choice("platform", self.platform, ("linearised", "proximal"))
        require_choice("rule", self.rule, ("participants", "stale"))
        deviation = self.dual_deviation
        require(0 <= deviation < 1e6, "dual_deviation", deviation, "a number of at least 0")
        if self.platform == "proximal" and self.prior is not None and self.prior.strength > 0:
            with_proximal(self.prior)  # refuses what has no such step
        if isinstance(self.penalty, str):
            require_choice("penalty", self.penalty, ("auto",))
            length = self.optimizer.step_size
            searched = length == "auto"
            require(searched, "server.step_size", length, "'auto', since penalty is 'auto'")
            for each in fields(self):  # what needs a penalty that the nodes know
                value = getattr(self, each.name)
                if each.name in _WITH_PENALTY and value != each.default:
                    raise SettingError(
                        f"{each.name} is {value!r} but penalty is 'auto'",
                        f"give a penalty as a number, or leave {each.name} out",
                    )
        else:
            rhos = self.penalty if isinstance(self.penalty, Mapping) else {"": self.penalty}
            for node, rho in rhos.items():
                require_positive(f"penalty ρ{f' of node {node!r}' if node else ''}", rho)
            for name in ("extrapolate", "duals"):
                if not getattr(self, name):
                    raise SettingError(f"{name} is False but penalty is a number", "leave it out")
        if self.local_steps == 1 and not self.duals:
            raise SettingError(
                "duals is False but local_steps is 1, where no dual is remembered",
                "leave it out, or give more local steps",
            )

    @property
    def automatic(self) -> bool:
        """Whether the platform finds ρ."""
        return isinstance(self.penalty, str)

    @property
    def needs_losses(self) -> bool:
        """To find ρ."""
        return self.automatic

    @property
    def numberwise(self) -> bool:
        """With a penalty that is known and no prior, whose divergence knows parameters by name."""
        own = type(self).platform_step is ADMMFedMeta.platform_step
        return own and not self.automatic and self.prior is None and self.inner.learned == "none"

    def penalties(self, names: Sequence[str], weights: Tensor) -> Tensor:
        """ρ_i of every source node; w_i under "auto"."""
        if isinstance(self.penalty, str):
            return weights
        if isinstance(self.penalty, Mapping):
            if missing := [name for name in names if name not in self.penalty]:
                raise SettingError(
                    f"penalty names no ρ for node {missing[0]!r} ({len(missing)} such nodes)",
                    "give one number for all nodes, or one per node name",
                )
            rho = weights.new_tensor([self.penalty[name] for name in names])
        else:
            rho = torch.full_like(weights, self.penalty)
        return rho * weights if self.penalty_unit == "weight" else rho

    def init(self, theta: Tree, fleet: Fleet) -> PlatformState:
        """θ¹ and what is known of the nodes: U⁰ = Σρ_iθ¹ for the rule "stale", else Σy⁰.

        Σy⁰ is taken as 0; where y⁰ is drawn, the error this leaves halves with every round.
        """
        if self.prior is not None:
            self.prior.checked(theta)
        joint = self.started(theta)
        if self.automatic:
            return self.separated(joint, self.optimizer.start(joint))
        if self.rule == "stale":
            return self.separated(joint, {"uploads": tree.scale(fleet.penalty, joint)})
        return self.separated(joint, {"duals": tree.zeros_like(joint)})

    def with_newcomers(self, state: PlatformState, theta: Tree, newcomers: Fleet) -> PlatformState:
        """For the rule "stale" U gains what newcomers are assumed to have sent, Σρ_iθ."""
        if self.automatic or self.rule == "participants":
            return state
        gained = self.init(theta, newcomers).memory["uploads"]
        uploads = tree.add(state.memory["uploads"], dict(gained))
        return replace(state, memory={**state.memory, "uploads": uploads})

    def init_node(self, theta: Tree, facts: Facts) -> NodeState:
        """y⁰ and, for the rule "stale", what the platform assumes was sent: u⁰ = ρθ¹.

        Under "auto" K = 1 needs no y⁻, and the platform forms Σv_i itself; K > 1 needs ỹ⁻ and L̂.
        """
        joint = self.started(theta)
        if self.automatic:
            if self.local_steps == 1:
                return {}
            unknown = torch.zeros_like(facts.weight)
            return {"dual": tree.zeros_like(joint), "smoothness": {"largest": unknown}}
        dual = tree.zeros_like(joint)
        if self.dual_deviation > 0:
            stream = randomness.fold(facts.key, Purpose.DUAL)
            for place, (name, leaf) in enumerate(theta.items()):
                draw = randomness.truncated_normal(randomness.fold(stream, place), leaf.numel())
                dual[name] = self.dual_deviation * draw.reshape(leaf.shape).to(leaf.dtype)
        if self.rule == "participants":
            return {"dual": dual}
        return {"dual": dual, "sent": tree.scale(facts.penalty, joint)}

    def node_step(
        self, objective: Objective, theta: Tree, node: NodeState, data: NodeData, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """Steps 1-5 of the algorithm; returns v_i and the new dual (under "auto" y_i)."""
        if self.automatic and self.local_steps > 1:
            return self._solved_step(objective, theta, node, data, facts)
        if self.automatic:
            gradient, loss = meta_gradient(objective, self.meta_gradient, theta, data, facts)
            dual = tree.scale(-facts.weight, gradient)
            return Contribution(dual, facts.weight, {"meta_loss": facts.weight * loss}), node
        w, rho, before = facts.weight, facts.penalty, node["dual"]
        dual, local, losses = before, theta, []
        for step in range(self.local_steps):
            if step > 0:
                local = tree.combine(1.0, theta, 1 / rho, tree.subtract(dual, before))
            # The first step draws from the round's own key: with K = 1 there is nothing to fold.
            draw = facts if step == 0 else facts._replace(key=randomness.fold(facts.key, step))
            gradient, loss = meta_gradient(objective, self.meta_gradient, local, data, draw)
            losses.append(loss)
            dual = self._dual_step(dual, gradient, w, rho)
        moved = tree.subtract(dual, before)  # ρ(θ_i − θ)
        update = tree.add(dual, moved)  # v_i = 2y − y⁻
        state: NodeState = {"dual": dual}
        if self.rule == "stale":
            upload = tree.combine(rho, theta, 1.0, update)  # u_i = ρθ + v_i
            update, state["sent"] = tree.subtract(upload, node["sent"]), upload
        metrics = {
            "meta_loss": w * losses[0],
            "primal_squared": tree.squared_norm(moved) / rho**2,
        }
        return Contribution(update, rho, metrics), state

    def linear_step(self, weight: Tensor, penalty: Tensor) -> LinearStep | None:
        """One local step: y = (1 − ηρ) y⁻ − ηρ w G and v = y + (y − y⁻); under "auto" y alone."""
        if self.local_steps > 1 or self.rule == "stale":
            return None
        rule, zero, one = self.meta_gradient, torch.zeros_like(weight), torch.ones_like(weight)
        if self.automatic:
            return LinearStep(rule, None, zero, -weight, one, zero, weight, weight, None)
        keep, gain = zero, -weight
        if self.local_step_size is not None:
            kappa = self._eta(weight) * penalty
            keep, gain = 1 - kappa, -kappa * weight
        return LinearStep(rule, "dual", keep, gain, one, one, penalty, weight, 1 / penalty**2)

    def _solved_step(
        self, objective: Objective, theta: Tree, node: NodeState, data: NodeData, facts: Facts
    ) -> tuple[Contribution, NodeState]:
        """K local steps of the node's own size; sends w_i ỹ. A round draws once, for all steps."""

        def gradient(place: Tree) -> tuple[Tree, Tensor]:
            return meta_gradient(objective, self.meta_gradient, place, data, facts)

        largest = node["smoothness"]["largest"]
        found = local_duals.solved(
            gradient, theta, node["dual"], largest, self.local_steps, self.duals
        )
        metrics = {
            "meta_loss": facts.weight * found.loss,
            "primal_squared": tree.squared_norm(found.moved),
        }
        sent = Contribution(tree.scale(facts.weight, found.dual), facts.weight, metrics)
        return sent, {"dual": found.dual, "smoothness": {"largest": found.smoothness}}

    def _dual_step(self, dual: Tree, gradient: Tree, w: Tensor, rho: Tensor) -> Tree:
        """z ← (1 − ηρ) z − ηρ w G."""
        if self.local_step_size is None:
            return tree.scale(-w, gradient)
        kappa = self._eta(w) * rho
        return tree.combine(1 - kappa, dual, -kappa * w, gradient)

    def _eta(self, w: Tensor) -> Tensor | float:
        """η_i, where it is given."""
        assert self.local_step_size is not None
        return self.local_step_size / w if self.penalty_unit == "weight" else self.local_step_size

    def platform_step(
        self, state: PlatformState, total: Contribution, fleet: Fleet
    ) -> tuple[PlatformState, Metrics]:
        """θ⁺ from Σv_i (or from U), and the residuals that the sums give for free."""
        if self.automatic:
            return self._automatic_step(state, total)
        joint, everyone = self.joined(state), fleet.penalty
        prior = None if self.prior is None else self.prior.fitted(state.theta)
        pull = None  # of the prior, which knows θ and no step sizes
        if prior is not None:
            pull = {**tree.zeros_like(joint), **prior.gradient(state.theta)}
        metrics: Metrics = {}
        if self.rule == "stale":
            uploads = tree.add(state.memory["uploads"], total.update)
            memory = {"uploads": uploads}
            free = tree.scale(1 / everyone, uploads)
            v = tree.combine(1.0, uploads, -everyone, joint)
        else:
            step = mean_update(total)
            free = tree.add(joint, step)
            v = tree.scale(everyone, step)  # as if everyone agreed with those that were counted
            # Σy = (Σv + Σy⁻)/2 over those counted; their part of Σy⁻ is taken in proportion to
            # Σρ, which is exact when everyone was.
            half = total.weight / everyone / 2
            memory = {"duals": tree.combine(1 - half, state.memory["duals"], 0.5, total.update)}
            metrics["gradient_norm"] = _distance(memory["duals"], pull)
        metrics["dual_residual"] = _distance(v, pull)
        if prior is None or pull is None or prior.strength == 0:  # λ = 0 is no prior, bit for bit
            updated = free
        elif self.platform == "proximal":
            updated = {**free, **with_proximal(prior).proximal(split(free)[0], everyone)}
        else:
            updated = tree.combine(1.0, free, -1 / everyone, pull)
        return self.separated(updated, memory), metrics

    def _automatic_step(
        self, state: PlatformState, total: Contribution
    ) -> tuple[PlatformState, Metrics]:
        """θ⁺ with a penalty that is found on the way; where no upload arrived all stays."""
        if "meta_loss" not in total.metrics:
            return state, {}
        joint, dual = self.joined(state), mean_update(total)
        loss = total.metrics["meta_loss"] / total.weight
        if self.prior is not None and self.prior.strength > 0:
            prior = self.prior.fitted(state.theta)
            loss = loss + prior.value(state.theta)
            dual = {**dual, **tree.subtract(split(dual)[0], prior.gradient(state.theta))}
        ahead = None
        if self.extrapolate:  # V = 2Y − Y⁻; Y in the first round, so that it is not twice as long
            before, first = state.memory["dual"], state.memory["search"]["rounds"] == 0
            ahead = {n: torch.where(first, y, 2 * y - before[n]) for n, y in dual.items()}
        updated, memory, metrics = self.optimizer.step(
            joint, state.memory, dual, loss, total.weight, ahead
        )
        metrics["meta_loss"] = metrics.pop("loss")
        return self.separated(updated, memory), metrics


def _distance(a: Tree, b: Tree | None) -> Tensor:
    """‖a − b‖, or ‖a‖."""
    return tree.squared_norm(a if b is None else tree.subtract(a, b)).sqrt()
