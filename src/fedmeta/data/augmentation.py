"""Augmentation at the nodes: every gradient pass of training sees images flipped and shifted anew.

A node with a dozen images sees the same ones in every round. Flips and small shifts make others of
them that mean the same, without any data beyond its own. Only training does so: what adapts a
target or judges it is never augmented.

A draw is a function of the key and of the place of the sample in its set alone, so it is the same
with padding and without, in a chunk of nodes and in a loop over them, and the gradients that a
curvature product compares see the same images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from fedmeta.core import randomness
from fedmeta.core.errors import DataError, require, require_choice, require_whole
from fedmeta.core.randomness import Purpose
from fedmeta.core.tree import Tree
from fedmeta.data.federation import Task

RenameLabels = Literal["auto", "never"]
Predict = Callable[[Tree, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Augmentation:
    """Random changes to samples that leave their meaning as it is: of images, and of class numbers.

    Args:
        flip: mirror left and right, every other time. Not for what has a reading direction, such
            as digits. "auto": images of three colours, which are photographs as a rule.
        shift: most pixels to shift by, up or down and left or right, evenly drawn; what comes in
            at the edge is 0, the mean of scaled inputs. "auto": a sixteenth of the shorter side,
            rounded down, of images of at least 16 × 16.
        rename_labels: "auto": where class numbers are local to a node, as in episodes, every
            training step draws them anew (`sample_sets.renamed`), so that they cannot be learned
            by heart; "never" leaves them as they are.
        turn_classes: where class numbers are local, every training step turns and mirrors the
            images of each class at random, all those of a class alike: other classes, as far as
            characters go (`turned_classes`). "auto": square grey images of at least 16 × 16.

    Example:
        >>> image = torch.arange(1.0, 5.0).reshape(1, 1, 2, 2)
        >>> Augmentation(flip=True)(image, randomness.key(1)).squeeze()
        tensor([[2., 1.],
                [4., 3.]])
    """

    flip: bool | Literal["auto"] = "auto"
    shift: int | Literal["auto"] = "auto"
    rename_labels: RenameLabels = "auto"
    turn_classes: bool | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        known = isinstance(self.flip, bool) or self.flip == "auto"
        require(known, "augmentation.flip", self.flip, 'true, false or "auto"')
        known = isinstance(self.turn_classes, bool) or self.turn_classes == "auto"
        require(known, "augmentation.turn_classes", self.turn_classes, 'true, false or "auto"')
        if self.shift != "auto":
            require_whole("augmentation.shift", self.shift, 0)
        choices = get_args(RenameLabels)
        require_choice("augmentation.rename_labels", self.rename_labels, choices)

    def resolved(self, shape: tuple[int, ...]) -> Augmentation:
        """The same with "auto" decided for samples of a shape (channels first, if images).

        Example:
            >>> Augmentation().resolved((3, 32, 32)), Augmentation(shift=1).resolved((64,)).flip
            (Augmentation(flip=True, shift=2, rename_labels='auto', turn_classes=False), False)
        """
        image = len(shape) == 3 and min(shape[1:]) >= 16
        flip = image and shape[0] == 3 if self.flip == "auto" else self.flip
        shift = (min(shape[1:]) // 16 if image else 0) if self.shift == "auto" else self.shift
        turn: bool | Literal["auto"] = self.turn_classes
        if turn == "auto":
            turn = image and shape[0] == 1 and shape[1] == shape[2]
        return replace(self, flip=flip, shift=shift, turn_classes=turn)

    @property
    def reach(self) -> int:
        """Most pixels to shift by; 0 while that is not decided."""
        return self.shift if isinstance(self.shift, int) else 0

    @property
    def active(self) -> bool:
        """Whether images are changed; not while that is not decided."""
        return self.flip is True or self.reach > 0

    def renames(self, task: Task) -> int:
        """Of how many classes the numbers are drawn anew; 0: of none.

        Example:
            >>> task = Task("classification", 5, local_labels=True)
            >>> Augmentation().renames(task), Augmentation(rename_labels="never").renames(task)
            (5, 0)
        """
        return task.outputs if task.local_labels and self.rename_labels == "auto" else 0

    def turns(self, task: Task) -> int:
        """Of how many classes the images are turned anew; 0: of none, or that is not decided.

        Example:
            >>> task = Task("classification", 5, local_labels=True)
            >>> Augmentation(turn_classes=True).turns(task), Augmentation().turns(task)
            (5, 0)
        """
        return task.outputs if task.local_labels and self.turn_classes is True else 0

    def check(self, shape: tuple[int, ...], name: str) -> None:
        """Refuse samples that are no images, or too small for the shift.

        Args:
            shape: of one sample.
            name: of the data, for people.

        Raises:
            DataError: says what does not fit.
        """
        square = len(shape) == 3 and shape[1] == shape[2]
        if self.turn_classes is True and not square:
            raise DataError(
                f"samples of {name} have shape {tuple(shape)}, but only square images turn",
                "leave augmentation.turn_classes out",
            )
        if not self.active:
            return
        if len(shape) != 3:
            raise DataError(
                f"samples of {name} have shape {tuple(shape)}, but only images (channels, height, "
                "width) can be flipped and shifted",
                "leave augmentation out, or give the data as images",
            )
        if self.reach >= min(shape[1:]):
            raise DataError(
                f"augmentation.shift is {self.shift}, but images of {name} have {shape[1]} × "
                f"{shape[2]} pixels",
                "shift by less than their height and width",
            )

    def __call__(self, inputs: Tensor, key: Tensor) -> Tensor:
        """The images, each with a draw of its own.

        Args:
            inputs: (n, channels, height, width), scaled.
            key: of this pass; the draw of image i depends on it and on i alone.
        """
        count, channels, height, width = inputs.shape
        draws = randomness.uniform(randomness.fold(key, Purpose.AUGMENTATION), 3 * count)
        mirrored, down, right = draws.reshape(count, 3, 1, 1).unbind(1)
        # Where every pixel comes from: one look-up for flip and shift together.
        row = torch.arange(height, device=inputs.device)[:, None] - self._offset(down)
        column = torch.arange(width, device=inputs.device) - self._offset(right)
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        if self.flip is True:
            column = torch.where(mirrored < 0.5, width - 1 - column, column)
        place = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
        index = place.reshape(count, 1, height * width).expand(count, channels, height * width)
        found = inputs.reshape(count, channels, height * width).gather(-1, index)
        found = found.reshape(inputs.shape)
        return torch.where(inside.unsqueeze(1), found, torch.zeros_like(found))

    def _offset(self, draw: Tensor) -> Tensor:
        return (draw * (2 * self.reach + 1)).to(torch.int64) - self.reach


def augmenting(predict: Predict, augmentation: Augmentation) -> Predict:
    """A model that sees augmented images where it is given a key, so in training alone.

    Args:
        predict: (θ, inputs, key) → outputs.
        augmentation: if it is not active, `predict` is returned as it is.

    Example:
        >>> def total(theta, inputs, key):
        ...     return inputs.sum((1, 2, 3))
        >>> images = torch.ones(1, 1, 2, 2)
        >>> shifting = augmenting(total, Augmentation(shift=1))
        >>> shifting({}, images, None), shifting({}, images, randomness.key(0))
        (tensor([4.]), tensor([2.]))
        >>> augmenting(total, Augmentation()) is total
        True
    """
    if not augmentation.active:
        return predict

    def augmented(theta: Tree, inputs: Tensor, key: Tensor | None) -> Tensor:
        return predict(theta, inputs if key is None else augmentation(inputs, key), key)

    return augmented
