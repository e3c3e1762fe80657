"""Regression from end to end: meta-learning waves."""

from __future__ import annotations

import torch

from fedmeta import (
    Adaptation,
    ADMMFedMeta,
    DataSettings,
    Execution,
    ModelSettings,
    TrainingSettings,
    load,
    train,
)


def test_adaptation_helps_more_after_meta_learning() -> None:
    data = load(DataSettings("sinusoid", nodes=20), seed=0)
    run = train(
        data,
        ModelSettings("mlp", hidden=(20,), activation="tanh"),
        ADMMFedMeta(Adaptation(0.1, steps=3), penalty=2.0, penalty_unit="weight"),
        TrainingSettings(rounds=80, evaluate_every=0, evaluation_steps=(0, 3, 10)),
        execution=Execution(path="batched"),
    )
    before = train(
        data,
        ModelSettings("mlp", hidden=(20,), activation="tanh"),
        ADMMFedMeta(Adaptation(0.1, steps=3)),
        TrainingSettings(rounds=0, evaluation_steps=(0, 3, 10)),
        execution=Execution(path="batched"),
    )
    errors, untrained = (
        {steps: row["mean"] for steps, row in each.summary["target_metric"].items()}
        for each in (run, before)
    )
    assert run.summary["metric"] == "mse"
    assert errors["3"] < 0.8 * errors["0"], "adaptation lowers the error of the trained model"
    assert errors["3"] < 0.8 * untrained["3"], "and further than that of the untrained one"
    losses = [record["meta_loss"] for record in run.history]
    assert losses[-1] < 0.8 * losses[0]
    node = data.targets[0]
    adapted = run.meta_model.adapt(data.inputs[node.support], data.labels[node.support])
    error = adapted.predict(data.inputs[node.query]) - torch.tensor(data.labels[node.query])
    assert run.evaluation is not None
    assert abs(float(error.square().mean()) - run.evaluation.values[3][0]) < 1e-4
