"""OpenInfer's system: model files, programs as text, a simulator that runs them by steps."""
