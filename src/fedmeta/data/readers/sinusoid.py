"""The sinusoid regression of the meta-learning literature: every node has a wave of its own."""

from __future__ import annotations

import numpy as np

from fedmeta.core.randomness import DataPurpose, generator
from fedmeta.data.federation import node_names
from fedmeta.data.pool import Pool


def draw_sinusoids(nodes: int, samples: tuple[int, int], seed: int) -> Pool:
    """A wave per node: y = A sin(x − φ), A uniform on [0.1, 5], φ on [0, π], x on [−5, 5].

    Args:
        nodes: how many waves.
        samples: smallest and largest number of points of a wave, both included.
        seed: same seed, same points.

    Example:
        >>> pool = draw_sinusoids(3, (10, 10), seed=0)
        >>> pool.inputs.shape, pool.labels.shape, sorted(set(pool.owners.tolist()))
        ((30, 1), (30, 1), ['node-000', 'node-001', 'node-002'])
    """
    rng = generator(seed, DataPurpose.SINUSOID)
    amplitude, phase = rng.uniform(0.1, 5, nodes), rng.uniform(0, np.pi, nodes)
    owner = np.repeat(np.arange(nodes), rng.integers(*samples, nodes, endpoint=True))
    x = rng.uniform(-5, 5, len(owner)).astype(np.float32)
    y = amplitude[owner] * np.sin(x.astype(np.float64) - phase[owner])
    names = np.array(node_names(nodes))
    return Pool(x[:, None], y[:, None], (), "sinusoid", names[owner], "waves drawn here")
