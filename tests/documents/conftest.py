"""Provide the part of torchvision that timm needs with a CPU build of torch."""

import tools.zoo.newcomers  # noqa: F401, declares torchvision's ops
