"""Declare torchvision's ops, so that its Python part can be imported without its library."""

from __future__ import annotations

from functools import cache
from importlib import import_module

import torch


@cache  # an op is declared once
def declare_torchvision_ops() -> None:
    """Declare the ops of torchvision's library where it does not load: beside torch's CPU build.

    Its Python part refers to them when timm, vit-pytorch or transformers import it.
    """
    try:
        import_module("torchvision")
    except (ImportError, RuntimeError):
        for name in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)
