"""Ops of a program as native plans: kernels instead of numpy, several nodes in one call."""

from __future__ import annotations

from taper_openinfer.native.stretches import Stretches

__all__ = ["Stretches"]
