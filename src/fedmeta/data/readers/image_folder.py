"""Your own images: a folder with one folder of images per class."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedmeta.core.errors import DataError, MissingExtraError
from fedmeta.data.pool import Pool

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp"}
GREY, COLOUR = {"1", "L", "LA"}, {"RGB", "RGBA", "P", "CMYK", "YCbCr"}


def read_image_folder(folder: Path) -> Pool:
    """All images of the folder: (N, 1, H, W) uint8 if every one is grey, else (N, 3, H, W).

    Args:
        folder: its folders, in alphabetical order, are the classes. All images must have the
            same height and width.
    """
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("pillow, which reads images,", "images") from None
    classes = sorted(each for each in folder.iterdir() if each.is_dir() and each.name[0] != ".")
    if not classes:
        raise DataError(f"{folder} has no folders", "put the images of each class into a folder")
    files, labels = [], []
    for number, each in enumerate(classes):
        found = sorted(file for file in each.iterdir() if file.suffix.lower() in SUFFIXES)
        if not found:
            raise DataError(f"{each} has no images", f"add some ({', '.join(sorted(SUFFIXES))})")
        files += found
        labels += [number] * len(found)

    size, modes = (0, 0), set()
    for file in files:  # headers only, so that nothing is decoded before all is known to fit
        try:
            with Image.open(file) as image:
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
        except OSError as error:
            raise DataError(f"{file} is not an image ({error})", "replace or remove it") from None
    mode = "L" if modes <= GREY else "RGB"
    pixels = np.empty((len(files), size[1], size[0], len(mode)), np.uint8)
    for number, file in enumerate(files):
        try:
            with Image.open(file) as image:
                pixels[number] = np.asarray(image.convert(mode)).reshape(pixels.shape[1:])
        except OSError as error:
            raise DataError(f"{file} is damaged ({error})", "replace or remove it") from None
    inputs = np.ascontiguousarray(np.moveaxis(pixels, 3, 1))
    names = tuple(each.name for each in classes)
    return Pool(inputs, np.array(labels, np.int64), names, folder.name, origin=folder.name)


def _shape(size: tuple[int, int]) -> str:
    return f"{size[0]}×{size[1]}"
