"""Define a state: a tensor that lives across runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(slots=True, eq=False)
class GraphState:
    """A tensor that lives across runs.

    Attributes
    ----------
    name : str
        The tensor, of role state, that holds its value during a run.
    first : numpy.ndarray
        Its value before the first run: C-contiguous, in the storage type of its dtype. A varying
        dim has size 1 here.
    next : str
        The tensor, of the same type, that holds its value after a run.
    """

    name: str
    first: np.ndarray
    next: str
