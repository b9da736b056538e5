"""Run programs written for ONNX Runtime, unchanged, over Taper."""
