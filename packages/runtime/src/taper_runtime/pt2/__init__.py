"""Read PyTorch's PT2 archives (``torch.export.save``) without torch, and without pickle.

>>> archive = taper_runtime.pt2.open("model.pt2")
>>> weights = archive.weights()
"""

from taper_runtime.pt2.archive import Archive
from taper_runtime.pt2.archive import open_archive as open

__all__ = ["Archive", "open"]
