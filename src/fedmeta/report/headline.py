"""The result in plain words: one sentence, true whatever the numbers are, and what to add to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmeta.evaluation.intervals import FEWEST
from fedmeta.report import format as fmt
from fedmeta.report.comparison_reading import ComparisonFacts
from fedmeta.report.reading import UNFINISHED, RunFacts
from fedmeta.studies.fair_steps import unfair_note


def run_headline(run: RunFacts) -> str:
    """What came of a run."""
    of = f" of {run.planned}" if run.planned != run.rounds else ""
    if run.status == "diverged":
        return f"Training diverged in round {run.rounds + 1} of {run.planned}; no model came of it."
    if run.status == UNFINISHED:
        return f"Still running or interrupted: {fmt.counted(run.rounds, 'round')}{of} done so far."
    statistics = run.target_metric.get(run.adaptation_steps)
    if statistics is None or "mean" not in statistics:
        sources = fmt.counted(len(run.federation.sources), "device", letters=True)
        return (
            f"Trained for {fmt.counted(run.rounds, 'round')} on {sources}; "
            "there were no new devices to test it on."
        )
    return _adapted(run, run.target_metric.get(0, {}).get("mean"), statistics["mean"])


def run_remarks(run: RunFacts) -> list[str]:
    """Sentences that belong below the headline."""
    remarks = []
    if run.status == "stopped early":
        patience = run.settings["training"].get("patience")
        why = f" for {fmt.counted(patience, 'round')}" if isinstance(patience, int) else ""
        remarks.append(
            f"Stopped early, after {run.rounds} of {run.planned} rounds: "
            f"the loss had not fallen{why}."
        )
    if run.status == "diverged":
        remedy = "raise the penalty ρ or lower the inner step size"
        if "penalty" not in run.settings["algorithm"]:
            remedy = "lower the step sizes"
        remarks.append(f"A loss or a parameter stopped being finite. To mend it, {remedy}.")
    if run.status in ("diverged", UNFINISHED):
        remarks.append(_latest(run))
    if run.targets:
        remarks.append(_test_size(run))
        remarks += _who_gained(run)
    remarks += [f"{note[0].upper()}{note[1:]}." for note in run.notes]
    remarks.append(_loss(run))
    return [remark for remark in remarks if remark]


def comparison_headline(comparison: ComparisonFacts) -> str:
    """Who came out where."""
    first = comparison.rows[0]
    if first.mean is None:
        return f"All runs of {first.label} diverged: there is nothing to compare the others with."
    value = fmt.estimate(first.mean, first.ci95, comparison.metric)
    reached = _with_name(value, comparison.metric, comparison.data)
    seeds = len(comparison.seeds)
    over = f"Over {fmt.counted(seeds, 'seed', letters=True)}, " if seeds > 1 else ""
    after = _after(first.adaptation_steps)
    after = f"{after[0].lower()}{after[1:]}"
    return f"{over}{first.label} reaches {reached} {after}{_standing(comparison)}."


def comparison_remarks(comparison: ComparisonFacts) -> list[str]:
    """Sentences that belong below the headline."""
    remarks = [_footing(comparison)]
    usual = comparison.rows[0].adaptation_steps
    others = [row for row in comparison.rows if row.adaptation_steps != usual]
    if others:
        parts = [f"{row.label} takes {fmt.counted(row.adaptation_steps, 'step')}" for row in others]
        remarks.append(
            f"Adapting differs: {fmt.listed(parts)} on each new device, "
            f"{comparison.rows[0].label} {fmt.number(usual)}."
        )
    if len(comparison.seeds) < FEWEST:
        seeds = fmt.counted(len(comparison.seeds), "seed", letters=True)
        remarks.append(
            f"With {seeds} no interval is given and nobody is called ahead: differences may be "
            f"chance. {FEWEST} seeds or more can tell."
        )
    if (unfair := unfair_note({row.label: row.steps for row in comparison.rows})) is not None:
        remarks.append(f"{unfair}.")
    diverged = {row.label: row.diverged for row in comparison.rows if row.diverged}
    if diverged:
        parts = [f"{fmt.counted(n, 'run')} of {label}" for label, n in diverged.items()]
        complete = all(len(row.values) == len(comparison.seeds) for row in comparison.rows)
        how = "counted as the untrained model" if complete else "left out of the means"
        remarks.append(f"Diverged, and {how}: {fmt.listed(parts)}.")
    if comparison.missing_runs:
        count = fmt.counted(len(comparison.missing_runs), "run folder")
        remarks.append(f"Without their curves, since they are gone: {count}.")
    return remarks


def _adapted(run: RunFacts, before: float | None, after: float) -> str:
    steps, metric = run.adaptation_steps, run.metric
    supports = [node.support for node in run.federation.targets]
    samples = f" on {fmt.between(supports)} samples" if supports and steps else ""
    devices = fmt.counted(len(run.targets), "new device", letters=True)
    start = f"{_after(steps)}{samples}, {devices}"
    one = len(run.targets) == 1
    data = run.settings.get("data", {})
    value, s = _with_name(fmt.metric(after, metric), metric, data), "s" if one else ""
    reach = f"reach{'es' if one else ''} {value}"
    if before is None or steps == 0:
        return f"{start} {reach}."
    earlier = fmt.metric(before, metric)
    if earlier == fmt.metric(after, metric):
        return f"{start} stay{s} at {value}: adapting changed nothing on average."
    if (after > before) == (metric == "accuracy"):
        return f"{start} {reach} (before: {earlier})."
    move = "fall" if metric == "accuracy" else "rise"
    worse = "it worse" if one else "them worse on average"
    return f"{start} {move}{s} to {value} (before: {earlier}): adapting made {worse}."


def _after(steps: int) -> str:
    if steps == 0:
        return "Without any adaptation"
    return f"After {fmt.counted(steps, 'gradient step', letters=True)}"


def _with_name(value: str, metric: str, data: Mapping[str, Any]) -> str:
    """A value with what it is, and with its unit where the labels have a name of their own."""
    if metric == "accuracy":
        return f"{value} accuracy"
    unit = f" {fmt.unit(metric, data['label'])}" if data.get("label") else ""
    return f"a mean squared error of {value}{unit}"


def _latest(run: RunFacts) -> str:
    """The last evaluation of a run that gave no final one."""
    rounds, values = run.target_series(run.adaptation_steps)
    if not rounds:
        return ""
    value = fmt.metric(values[-1], run.metric)
    return (
        f"{_after(run.adaptation_steps)}, the new devices were at "
        f"{_with_name(value, run.metric, run.settings.get('data', {}))} when last looked at, "
        f"in round {rounds[-1]}."
    )


def _test_size(run: RunFacts) -> str:
    query = sum(target.query for target in run.targets)
    how = "the mean over" if len(run.targets) > 1 else "of"
    devices = fmt.counted(len(run.targets), "device")
    return (
        f"This is {how} {devices} that training never saw, measured on "
        f"{fmt.counted(query, 'sample')} they did not adapt on."
    )


def _who_gained(run: RunFacts) -> list[str]:
    found = {how: n for how, n in run.outcomes().items() if n}
    remarks = []
    if run.adaptation_steps and found and len(run.targets) > 1:
        words = {"better": "got better", "unchanged": "stayed the same", "worse": "got worse"}
        parts = [f"{fmt.word(n)} {words[how]}" for how, n in found.items()]
        remarks.append(f"By adapting, {fmt.listed(parts)}.")
    statistics = run.target_metric.get(run.adaptation_steps, {})
    if "worst_decile" in statistics and len(run.targets) > 1:
        worst = fmt.metric(statistics["worst_decile"], run.metric)
        remarks.append(f"The worst tenth of the devices ends at {worst}.")
    return remarks


def _loss(run: RunFacts) -> str:
    losses = run.series(run.loss_key)[1]
    if len(losses) < 2:
        return ""
    verb = "fell" if losses[-1] < losses[0] else "rose" if losses[-1] > losses[0] else "stayed"
    return (
        f"Over the rounds the loss on the source devices {verb} from {fmt.number(losses[0])} "
        f"to {fmt.number(losses[-1])}."
    ).replace("stayed from", "stayed, from")


def _footing(comparison: ComparisonFacts) -> str:
    """What was the same for all."""
    same = "the same data and the same start for a seed"
    if comparison.equal != "gradients":
        return f"All algorithms had an equal number of rounds, and {same}."
    idle = [row.label for row in comparison.rows if row.gradient_evaluations == 0]
    but = f" ({fmt.listed(idle)} computes none on the sources)" if idle else ""
    return f"All algorithms had about as many gradient evaluations{but}, and {same}."


def _standing(comparison: ComparisonFacts) -> str:
    """Where the first row stands: clearly ahead, clearly behind, or neither."""
    if len(comparison.seeds) < FEWEST:
        return ""
    sign = 1 if comparison.metric == "accuracy" else -1
    groups: dict[str, list[str]] = {"ahead of": [], "behind": [], "not clearly apart from": []}
    for pair in comparison.paired:
        if pair.mean is None:
            continue
        sure = pair.ci95 is not None and abs(pair.mean) > pair.ci95
        lead = sign * pair.mean if sure else 0
        where = "ahead of" if lead > 0 else "behind" if lead < 0 else "not clearly apart from"
        groups[where].append(pair.against)
    parts = [f"{where} {fmt.listed(names)}" for where, names in groups.items() if names]
    return f": {'; '.join(parts)}" if parts else ""
