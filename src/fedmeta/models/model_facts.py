"""What a model file says beside its tensors, checked before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from fedmeta.core.calibration import Calibration
from fedmeta.core.errors import RunFolderError, SettingError
from fedmeta.core.objective import Adaptation
from fedmeta.core.plain_values import parse_json
from fedmeta.core.tree import Tree
from fedmeta.core.user_code import is_backbone_code, is_code_name
from fedmeta.data.federation import Task
from fedmeta.data.named_inputs import InputParts
from fedmeta.models.functional import FunctionalModel, functionalise, initialised
from fedmeta.models.losses import BALANCED, Balanced, Loss, named_loss
from fedmeta.models.networks import ModelSettings, build

FORMAT = 1
RESTORE = "restore it from a copy"


def check_step_sizes(rule: Adaptation, theta: Tree, file: Path) -> None:
    """Refuse a file whose learned step sizes are missing, of another model or no step sizes."""
    if rule.factors is None:
        if rule.learned != "none":
            raise RunFolderError(f"{file} lacks the step sizes that its model learned", RESTORE)
        return
    try:
        factors = rule.fitted(theta).factors or {}
    except SettingError as error:
        raise RunFolderError(f"{file} is damaged: {error.problem}", RESTORE) from error
    for name, leaf in factors.items():
        if not bool((leaf.isfinite() & (leaf > 0)).all()):
            raise RunFolderError(
                f"{file} has step sizes of {name!r} that are not numbers greater than 0", RESTORE
            )


def read_facts(file: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """What the header says, of a format that this version reads."""
    try:
        facts = parse_json(metadata["fedmeta"])
        version = facts["format"]
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"{file} is a safetensors file but not a meta-model of fedmeta",
            "use the model.safetensors of a run folder",
        ) from error
    if version != FORMAT:
        raise RunFolderError(
            f"{file} has format {version!r}, this version reads {FORMAT}",
            "read it with the version of fedmeta that wrote it",
        )
    return dict(facts)


def network_of(
    file: Path,
    facts: Mapping[str, Any],
    network: nn.Module | ModelSettings | None,
    shape: tuple[int, ...],
    task: Task,
    most: int,
) -> FunctionalModel:
    """The network: the one that is given, or a built-in one that the file names.

    The latter has at most as many parameters as the file has numbers (`most`), whatever it says.
    """
    parts = InputParts.from_facts(facts["inputs"]) if facts.get("inputs") else None
    if isinstance(network, nn.Module):
        return functionalise(initialised(network, shape), parts)
    if network is None:
        stored = facts["network"]
        own = stored.get("class") or ModelSettings(**stored).own_code
        if own is not None:
            flag = "--backbone" if stored.get("backbone") else "--model"
            code = flag == "--model" or is_backbone_code(own)
            what = "a network of your own" if code else "what a hub or a folder has"
            raise RunFolderError(
                f"{file} was trained with {what} ({own})",
                f"name that network again: {flag} on the command line, network= in Python",
            )
        named = _without_files(ModelSettings(**stored))
        return functionalise(build(named, shape, task.outputs, 0, most, parts, empty=True), parts)
    if network.backbone is not None and "backbone" in facts["network"]:  # its head is as it was
        network = replace(ModelSettings(**facts["network"]), backbone=network.backbone)
    stored = facts["network"].get("vocabulary", 0)
    network = _without_files(replace(network, vocabulary=network.vocabulary or stored))
    built = build(network, shape, task.outputs, seed=0, parts=parts, empty=True)
    return functionalise(built, parts)


def _without_files(settings: ModelSettings) -> ModelSettings:
    """The same whose backbone's weights come from the model file itself."""
    return replace(settings, backbone_weights=None)


def loss_of(file: Path, facts: Mapping[str, Any], task: Task) -> Loss:
    """The built-in loss that the file names."""
    name = facts["loss"]
    if is_code_name(name):
        raise RunFolderError(
            f"{file} was trained with a loss of your own ({name})",
            "name it again: --loss on the command line, loss= in Python",
        )
    if name == BALANCED:
        return Balanced(tuple(map(float, facts["class_weights"])))
    return named_loss(name, task)


def calibration_of(file: Path, facts: Mapping[str, Any]) -> Calibration | None:
    """What the source nodes counted; files of older versions have none."""
    if facts.get("calibration") is None:
        return None
    try:
        return Calibration(**facts["calibration"])
    except SettingError as error:
        raise RunFolderError(
            f"{file} is damaged: of its calibration, {error.problem}", RESTORE
        ) from error
