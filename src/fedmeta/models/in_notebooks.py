"""What a notebook shows of a meta-model."""

from __future__ import annotations

from fedmeta.core.notebook import facts_table
from fedmeta.core.objective import Adaptation
from fedmeta.core.tree import Tree
from fedmeta.data.federation import Task

_MOST = 12  # class names that are written out


def model_table(
    network: str, theta: Tree, task: Task, rule: Adaptation, shape: tuple[int, ...]
) -> str:
    """Its size, what goes in and comes out, and how it adapts, as HTML.

    Args:
        network: what people call it.
        theta: its parameters.
        task: what outputs mean.
        rule: how it adapts.
        shape: of one raw sample.
    """
    names = task.class_names
    classes = ", ".join(names[:_MOST]) + (", …" if len(names) > _MOST else "")
    moved = rule.scope if isinstance(rule.scope, str) else ", ".join(rule.scope)
    steps = f"{rule.steps} step{'' if rule.steps == 1 else 's'} of {rule.step_size:g}"
    facts = {
        "network": network,
        "parameters": f"{sum(leaf.numel() for leaf in theta.values()):,}",
        "input": " × ".join(map(str, shape)),
        "output": classes or f"{task.outputs} value{'' if task.outputs == 1 else 's'}",
        "adapts": f"{steps}, {moved}",
    }
    return facts_table("MetaModel", facts)
