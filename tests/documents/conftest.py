"""What timm needs of torchvision beside a CPU build of torch."""

import tools.zoo.newcomers  # noqa: F401, declares torchvision's ops
