"""ONNX Runtime's name for the place of its exceptions: ``capi.onnxruntime_pybind11_state``."""

from taper_runtime.capi import onnxruntime_pybind11_state as onnxruntime_pybind11_state
