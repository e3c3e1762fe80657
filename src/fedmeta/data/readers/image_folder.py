"""Your own images: a folder with one folder of images per class, perhaps in groups of classes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from fedmeta.core.errors import DataError, FedmetaError, MissingExtraError
from fedmeta.core.input_files import check_input, open_regular
from fedmeta.data.pool import Pool

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp"}
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""What is looked for in a file, whatever its name says: others may start programs (EPS)."""
MOST_PIXELS = 50_000_000
"""Of an image, which is decoded whole."""
_DEEPEST = 3  # groups of groups of classes
GREY, COLOUR = {"1", "L", "LA"}, {"RGB", "RGBA", "P", "CMYK", "YCbCr"}


def read_image_folder(folder: Path) -> Pool:
    """All images of the folder: (N, 1, H, W) uint8 if every one is grey, else (N, 3, H, W).

    Args:
        folder: its folders, in alphabetical order, are the classes. A folder without images is a
            group of classes, such as an alphabet: those of its folders, "Greek/alpha". All images
            must have the same height and width.
    """
    classes = _classes(folder, _DEEPEST)
    if not classes:
        raise DataError(f"{folder} has no folders", "put the images of each class into a folder")
    files, labels = [], []
    for number, found in enumerate(classes.values()):
        files += found
        labels += [number] * len(found)

    size, modes, stored = (0, 0), set(), 0
    for file in files:  # headers only, so that nothing is decoded before all is known to fit
        with opened_image(file) as image:
            stored += file.stat().st_size
            size = size if size != (0, 0) else image.size
            if image.size != size:
                raise DataError(
                    f"{files[0]} is {_shape(size)} but {file} is {_shape(image.size)}",
                    "resize all images to one size first",
                )
            modes.add(image.mode)
            if image.mode not in GREY | COLOUR:
                raise DataError(
                    f"{file} has pixels of type {image.mode!r}",
                    "convert it to 8 bits per channel, grey or RGB",
                )
    mode = "L" if modes <= GREY else "RGB"
    shape = (len(files), size[1], size[0], len(mode))
    check_input(folder, math.prod(shape), stored)
    pixels = np.empty(shape, np.uint8)
    for number, file in enumerate(files):
        with opened_image(file) as image:
            pixels[number] = np.asarray(image.convert(mode)).reshape(pixels.shape[1:])
    inputs = np.ascontiguousarray(np.moveaxis(pixels, 3, 1))
    names = tuple(each.relative_to(folder).as_posix() for each in classes)
    return Pool(inputs, np.array(labels, np.int64), names, folder.name, origin=folder.name)


def _classes(folder: Path, depth: int) -> dict[Path, list[Path]]:
    """The folders that have images, and their images, both in order."""
    try:
        inside = sorted(each for each in folder.iterdir() if each.name[0] != ".")
        found: dict[Path, list[Path]] = {}
        for each in (each for each in inside if each.is_dir()):
            images = sorted(file for file in each.iterdir() if file.suffix.lower() in SUFFIXES)
            within = {each: images} if images else _classes(each, depth - 1) if depth else {}
            if not within:
                kinds = ", ".join(sorted(SUFFIXES))
                raise DataError(f"{each} has no images", f"add some ({kinds})")
            found |= within
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror})", "check the path") from None
    return found


@contextmanager
def opened_image(file: Path | BinaryIO, name: str | None = None) -> Iterator[Image]:
    """An image of one of the `FORMATS`; whatever goes wrong with it becomes one line.

    Args:
        file: where it lies, or its content.
        name: what to call it; None: by its path.
    """
    try:
        import PIL
        import PIL.Image
    except ImportError:
        raise MissingExtraError("pillow, which reads images,", "images") from None
    shown = str(file) if name is None else name
    try:
        with (
            warnings.catch_warnings(action="ignore"),  # of pillow, on what is refused below
            open_regular(file) if isinstance(file, Path) else file as content,
            PIL.Image.open(content, formats=FORMATS) as image,
        ):
            if image.width * image.height > MOST_PIXELS:
                raise DataError(f"{shown} has too many pixels", "make it smaller first")
            yield image
    except FedmetaError:
        raise
    except Exception as error:  # a damaged image can fail in any way
        what = "not an image" if isinstance(error, PIL.UnidentifiedImageError) else "damaged"
        raise DataError(f"{shown} is {what} ({error})", "replace or remove it") from None


def _shape(size: tuple[int, int]) -> str:
    return f"{size[0]}×{size[1]}"
