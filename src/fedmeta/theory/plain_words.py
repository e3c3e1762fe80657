"""What matters to a user of a run, in plain words: did it converge, its steps, forgetting."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from fedmeta.algorithms.admm_fedmeta import ADMMFedMeta
from fedmeta.core.run_folder import Record
from fedmeta.theory.trajectory import Measurement

_STILL = 0.01  # of the whole fall, within the last tenth: still falling
_OFTEN = 0.2  # of the rounds


def plain_words(
    algorithm: ADMMFedMeta, history: Sequence[Record], looks: Sequence[Measurement]
) -> tuple[str, ...]:
    """A sentence each on convergence, on the length of steps and on forgetting.

    Args:
        algorithm: as it was run.
        history: what was logged of its rounds.
        looks: what was measured when they were computed again.
    """
    return (convergence(looks), _steps(algorithm, history, looks), _forgetting(algorithm))


def convergence(looks: Sequence[Measurement]) -> str:
    """Whether the loss after adaptation has come to rest.

    Example:
        >>> losses = [2.0, 1.0, *[0.5] * 18]
        >>> convergence([Measurement(t + 1, loss, 0.1) for t, loss in enumerate(losses)])
        'Converged: the loss after adaptation fell from 2 to 0.5 and rests.'
    """
    losses = [look.objective for look in looks]
    first, last = losses[0], losses[-1]
    way = f"the loss after adaptation went from {first:.3g} to {last:.3g}"
    if last >= first:
        return f"Not converged: {way}. Lower the steps, or look at the data."
    earlier = losses[-1 - max(1, len(losses) // 10)]
    if earlier - last > _STILL * (first - last):
        return f"Not yet converged: {way} and still falls. More rounds will help."
    return f"Converged: {way.replace('went', 'fell')} and rests."


def _steps(algorithm: ADMMFedMeta, history: Sequence[Record], looks: Sequence[Measurement]) -> str:
    """Whether the platform's steps are of a sensible length."""
    if algorithm.automatic:
        tried = [record["rejected"] for record in history if "rejected" in record]
        back = round(sum(tried))
        often = back > _OFTEN * max(1, len(tried))
        verdict = "more than usual; noisy losses may be why" if often else "as it should be"
        return (
            f"Steps are found by the run itself: {back} of {len(tried)} were tried and taken back, "
            f"{verdict}."
        )
    pairs = list(pairwise(looks))
    rose = sum(b.objective > a.objective for a, b in pairs)
    if rose > _OFTEN * max(1, len(pairs)):
        how = f"the loss rose in {rose} of {len(pairs)} rounds"
        return f"Steps are too long: {how}. Raise the penalty."
    return (
        f"Steps are not too long: the loss rose in {rose} of {len(pairs)} rounds. A smaller "
        "penalty may be faster."
    )


def _forgetting(algorithm: ADMMFedMeta) -> str:
    prior = algorithm.prior
    if prior is None or prior.strength == 0:
        return (
            "Nothing ties it to earlier tasks: what these data do not ask for is forgotten. "
            "A prior model keeps it (train --prior RUN)."
        )
    return f"Tied to an earlier model with strength {prior.strength:.3g}, which slows forgetting."
