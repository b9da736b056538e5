"""Run ops of a program as native plans: kernels instead of numpy, several nodes per call."""

from __future__ import annotations

from taper_openinfer.native.stretches import Stretches

__all__ = ["Stretches"]
