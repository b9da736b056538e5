"""Provide ONNX Runtime's exceptions at their place: ``capi.onnxruntime_pybind11_state``."""

from taper_runtime.capi import onnxruntime_pybind11_state as onnxruntime_pybind11_state
