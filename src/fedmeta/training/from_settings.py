"""Training what settings say: with λ found, and inputs scaled as an earlier model wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from fedmeta.config.execution import Execution
from fedmeta.config.settings import Settings
from fedmeta.core.serialization import from_plain, to_plain
from fedmeta.core.tree import Tree
from fedmeta.data.federation import Federation
from fedmeta.data.scaling import Scaling, fit_scaling
from fedmeta.models.meta_model import load_scaling, load_theta
from fedmeta.priors import Regularizer
from fedmeta.training.loop import Callback, Run, train
from fedmeta.training.prior_strength import balanced


def train_settings(
    settings: Settings,
    federation: Federation,
    *,
    folder: Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    origin: Mapping[str, Any] | None = None,
) -> Run:
    """Train what the settings say on a federation that was loaded by them."""
    settings = with_strength(settings, federation, callbacks)
    return train(
        federation,
        settings.model,
        settings.algorithm,
        settings.training,
        **arguments(settings, federation),
        folder=folder,
        resume=resume,
        callbacks=callbacks,
        origin=origin,
    )


def with_strength(
    settings: Settings, federation: Federation, callbacks: Sequence[Callback] = ()
) -> Settings:
    """The settings with λ = "auto" replaced by a number, for which a run without it is trained.

    See `fedmeta.training.prior_strength`. Where λ is a number already nothing changes.
    """
    algorithm = settings.algorithm
    prior: Regularizer | None = getattr(algorithm, "prior", None)
    if prior is None or settings.prior.strength != "auto":
        return settings
    pilot = replace(
        settings,
        algorithm=replace(cast(Any, algorithm), prior=None),
        training=replace(settings.training, evaluate_every=0),
        prior=replace(settings.prior, strength=1.0),  # inputs are scaled as they will be
    )
    sources = federation.with_nodes(federation.sources)
    run = train_settings(pilot, sources, callbacks=callbacks)
    execution = from_plain(Execution, run.summary["settings"]["execution"], "execution")
    found = balanced(prior, run.meta_model, sources, execution, settings.training.seed)
    return replace(
        settings,
        algorithm=replace(
            cast(Any, algorithm), prior=replace(cast(Any, prior), strength=found.strength)
        ),
        prior=replace(settings.prior, strength=found.strength),
    )


def kept_scaling(settings: Settings, shape: Sequence[int]) -> Scaling | None:
    """That of the model which the run is tied to or starts from, if it has one for such samples."""
    for path in (settings.prior.model if settings.prior.ties else None, settings.init):
        kept = load_scaling(path) if path is not None else None
        if kept is not None and _broadcasts(kept.mean.shape, shape):
            return kept
    return None


def _scaling(settings: Settings, federation: Federation) -> Scaling:
    """The one that is kept, or a new one."""
    data, kept = settings.data, kept_scaling(settings, federation.inputs.shape[1:])
    if kept is not None:
        return kept
    return fit_scaling(federation, data.scaling, data.scaling_from, data.scaling_floor)


def arguments(
    settings: Settings,
    federation: Federation,
    scaling: Scaling | None = None,
    initial: Tree | None = None,
) -> dict[str, Any]:
    """What `train` and `prepare` take by name.

    Args:
        settings: of the run.
        federation: who takes part.
        scaling: of the inputs; None: as the settings say.
        initial: θ to start from; None: as the settings say.
    """
    if initial is None and settings.init:
        initial = load_theta(settings.init)
    return {
        "loss": settings.loss,
        "scaling": scaling or _scaling(settings, federation),
        "initial": initial,
        "execution": settings.execution,
        "participation": settings.participation,
        "uplink": settings.uplink,
        "augmentation": settings.augmentation,
        "about_data": to_plain(settings.data),
    }


def _broadcasts(small: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether a scaling of one shape can be applied to samples of another."""
    pairs = zip(reversed(small), reversed(shape), strict=False)
    return len(small) <= len(shape) and all(a in (1, b) for a, b in pairs)
