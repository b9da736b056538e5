"""Run programs step by step: memory kinds, caches, control flow, devices, traces."""
