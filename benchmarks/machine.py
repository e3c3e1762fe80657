"""What a figure was measured on, in words: facts, no names of hosts."""

from __future__ import annotations

import platform
from pathlib import Path

import torch


def description(device: str) -> str:
    """The machine behind a device, e.g. "GPU NVIDIA H200, torch 2.11.0"."""
    version = torch.__version__.partition("+")[0]
    if device.startswith("cuda"):
        return f"GPU {torch.cuda.get_device_name(device)}, torch {version}"
    threads = torch.get_num_threads()
    cores = "1 core" if threads == 1 else f"{threads} cores"
    return f"CPU {_processor()}, {cores}, torch {version}"


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    names = [line.partition(":")[2] for line in lines if line.startswith("model name")]
    return " ".join((names[0] if names else platform.machine()).replace("(R)", "").split())
