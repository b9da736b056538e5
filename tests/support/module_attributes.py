"""Read the attributes of modules, and run modules beside their plans."""

import numpy as np
import torch

from taper_runtime import InferenceSession


def attributes_of(module):
    """Return the attributes of a module and of its parts, by part and name."""
    return {
        (name, key): value
        for name, part in module.named_modules()
        for key, value in vars(part).items()
        if not key.startswith("_forward")
    }


def assert_runs_alike(module, plan):
    """Check that four calls of a module and of its plan give the same."""
    session = InferenceSession(plan)
    for _ in range(4):
        x = torch.randn(2, 3)
        with torch.no_grad():
            want = module(x).numpy()
        np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], want, atol=1e-5)
