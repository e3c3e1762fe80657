"""A frozen pretrained backbone with a head of one's own: what thirty images per device can train.

    samples → [preprocessing → backbone → pooling → standardised] → head → outputs
                            frozen, `body`                          `head`

Nothing in the body is trained or sent. What it makes of a sample is computed once and kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedmeta.core.errors import ModelError, SettingError
from fedmeta.models.backbone_sources import open_backbone
from fedmeta.models.preprocessing import Preprocessing

HeadKind = Literal["auto", "mlp", "linear", "prototype", "cosine"]
_SHARPNESS = 10.0  # of a cosine head at the start


class Pooled(nn.Module):
    """Features as one vector per sample: means over the places of a map or a sequence.

    Example:
        >>> Pooled()(torch.ones(2, 5, 3, 3)).shape, Pooled()(torch.ones(2, 7, 5)).shape
        (torch.Size([2, 5]), torch.Size([2, 5]))
    """

    def forward(self, found: Tensor) -> Tensor:
        """(n, features)."""
        if found.ndim == 4:
            return found.mean(dim=(2, 3))
        return found.mean(dim=1) if found.ndim == 3 else found


class Cosine(nn.Module):
    """Outputs by angles alone: s · cos(h, w_c), with s and all w_c trained.

    Gidaris, Komodakis, Dynamic Few-Shot Visual Learning without Forgetting, CVPR 2018.

    Example:
        >>> head = Cosine(4, 2)
        >>> torch.allclose(head(torch.ones(1, 4)), head(5 * torch.ones(1, 4)))
        True
    """

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, features) / features**0.5)
        self.sharpness = nn.Parameter(torch.tensor(_SHARPNESS))

    def forward(self, features: Tensor) -> Tensor:
        """(n, outputs)."""
        directions = functional.normalize(features, dim=-1), functional.normalize(self.weight)
        return self.sharpness * functional.linear(*directions)


def with_head(
    name: str,
    shape: Sequence[int],
    outputs: int,
    kind: HeadKind,
    *,
    hidden: Sequence[int],
    activation: Callable[[], nn.Module],
    size: int | None = None,
    weights: str | None = None,
    empty: bool = False,
    most: int | None = None,
) -> nn.Module:
    """A backbone by name, frozen, and a head to be trained.

    Args:
        name: see `backbone_sources`.
        shape: of one sample.
        outputs: numbers per sample.
        kind: of the head. "prototype", and what "auto" comes to, is an mlp whose last layer may be
            made of class means.
        hidden: widths of the hidden layers of an mlp; (): none.
        activation: between them.
        size: of the images that the backbone sees; None: as it was trained.
        weights: a file with those of the backbone; None: the library's.
        empty: the backbone's weights do not matter.
        most: parameters that it may have; None: any.
    """
    if most is not None:
        _check_size(name, shape, size, most)
    body, features = frozen_body(name, tuple(shape), size, weights, empty)
    layers: list[nn.Module] = []
    if kind in ("auto", "mlp", "prototype"):
        for width in hidden:
            layers += [nn.Linear(features, width), activation()]
            features = width
    layers.append(Cosine(features, outputs) if kind == "cosine" else nn.Linear(features, outputs))
    return nn.Sequential(OrderedDict(body=body, head=nn.Sequential(*layers)))


def _check_size(name: str, shape: Sequence[int], size: int | None, most: int) -> None:
    """Refuse a backbone that is too large, from its shapes alone.

    Some libraries look at numbers while they build a network; these are built to see.
    """
    with suppress(RuntimeError, TypeError, SettingError), torch.device("meta"):
        module = open_backbone(name, shape, size, None, empty=True).module
        if (count := sum(each.numel() for each in module.parameters())) > most:
            raise ModelError(
                f"backbone {name} has {count} parameters, more than {most}", "use the right file"
            )


@lru_cache(maxsize=2)  # repeats and their defaults ask for the same again and again
def frozen_body(
    name: str, shape: tuple[int, ...], size: int | None, weights: str | None, empty: bool
) -> tuple[nn.Sequential, int]:
    """The backbone between preprocessing and standardised features, and how many these are.

    It is shared by whoever asks for the same: not to be changed.
    """
    with torch.random.fork_rng(devices=[]):  # the head is drawn alike whether this is cached
        opened = open_backbone(name, shape, size, weights, empty=empty)
    layers: list[nn.Module] = []
    if opened.photo is not None:
        layers.append(Preprocessing(opened.photo, shape))
    layers += [opened.module, Pooled()]
    body = nn.Sequential(*layers).eval().requires_grad_(False)
    try:
        with torch.no_grad():
            found = body(torch.zeros(1, *shape))
    except Exception as error:  # whatever somebody's forward raises
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise ModelError(
            f"backbone {name} fails on samples of shape {shape}: {first}",
            "give samples that it takes, or another --image-size",
        ) from error
    if not isinstance(found, Tensor) or found.ndim != 2:
        what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ModelError(
            f"backbone {name} gives {what} for one sample, which is no vector of features",
            "use one whose classifier can be left out, or a function of your own",
        )
    features = found.shape[1]
    return body.append(nn.LayerNorm(features, elementwise_affine=False)).eval(), features
