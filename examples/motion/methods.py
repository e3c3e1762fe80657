"""What is compared, and how each is tuned: on source people who play target, never on targets.

Every method gets one step of the last layer on a person's ten windows, with a step size α of its
own choice. The model from scratch has nothing to start from: a hundred steps of all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedmeta import (
    Adaptation,
    ADMMFedMeta,
    DivergedError,
    Execution,
    FedAvg,
    Federation,
    LocalOnly,
    MetaModel,
    ModelSettings,
    PlatformOptimizer,
    TrainingSettings,
    evaluate_model,
    fit_scaling,
    train,
)
from fedmeta.contract import Algorithm

NETWORK = ModelSettings("cnn")
STEPS = (0.03, 0.1, 0.3, 1.0)  # α to choose from
RATES = (0.03, 0.1, 0.3)  # η to choose from, of FedAvg and of training from scratch
LONGEST = (0.02, 0.04, 0.08)  # the longest step to choose from, of ADMM-FedMeta
HELD_OUT = 0.2
"""The share of source people that plays target while tuning."""


Setting = dict[str, float]


def candidates() -> dict[str, list[Setting]]:
    """What each method may choose from. FedAvg's training does not look at α: see `tried`."""
    return {
        "admm-fedmeta": [{"longest": step, "α": size} for step in LONGEST for size in STEPS],
        "fedavg": [{"η": rate} for rate in RATES],
        "scratch": [{"η": rate} for rate in RATES],
    }


def method(name: str, setting: Setting) -> Algorithm:
    """A method with its settings."""
    inner = Adaptation(setting.get("α", STEPS[0]), scope="head")
    if name == "admm-fedmeta":
        server = PlatformOptimizer("orthogonal", "auto", 0.9, longest_step=setting["longest"])
        return ADMMFedMeta(inner=inner, server=server)
    if name == "fedavg":
        return FedAvg(setting["η"], local_steps=5, inner=inner)
    return LocalOnly(setting["η"], steps=100)


def fitted(
    federation: Federation, algorithm: Algorithm, rounds: int, seed: int, device: str
) -> MetaModel:
    """The meta-model of one training."""
    if isinstance(algorithm, LocalOnly):
        rounds = 0  # what sources would teach is not looked at
    training = TrainingSettings(rounds=rounds, seed=seed, evaluate_every=0, evaluation_steps=(0,))
    run = train(
        federation,
        NETWORK,
        algorithm,
        training,
        scaling=fit_scaling(federation, "per-channel"),
        execution=Execution(device=device),
    )
    return run.meta_model


def accuracies(model: MetaModel, federation: Federation) -> tuple[float, float]:
    """Mean accuracy of the target people before and after adapting."""
    steps = model.adaptation.steps
    values = evaluate_model(model, federation, (0, steps)).values
    before, after = (sum(values[k]) / len(values[k]) for k in (0, steps))
    return before, after


def tried(
    people: Sequence[Federation], name: str, setting: Setting, rounds: int, device: str
) -> list[tuple[Setting, float]]:
    """Mean accuracy after adapting on held-out source people, for every α that is left open.

    Args:
        people: one federation per repeat; its targets are taken out before anything else.
        name: of the method.
        setting: what to try; nothing comes back of one that diverges.
        rounds: of training.
        device: "cpu" or "cuda".
    """
    held = [each.hold_out(HELD_OUT, seed) for seed, each in enumerate(people)]
    try:
        models = [
            fitted(each, method(name, setting), rounds, seed, device)
            for seed, each in enumerate(held)
        ]
    except DivergedError:
        return []
    results = []
    for size in STEPS if name == "fedavg" else (models[0].adaptation.step_size,):
        scores = [
            accuracies(replace(m, adaptation=replace(m.adaptation, step_size=size)), each)[1]
            for m, each in zip(models, held, strict=True)
        ]
        found = {**setting, "α": size} if name == "fedavg" else setting
        results.append((found, sum(scores) / len(scores)))
    return results
