"""Register backends that compute subgraphs of a model; torch is not needed.

>>> from taper_frontend.delegates import elementwise_subgraphs, register_backend
>>> taper_frontend.export(module, args, partition=elementwise_subgraphs, delegate="c")
"""

from __future__ import annotations

from taper_frontend.compiler.c_delegate import elementwise_subgraphs
from taper_frontend.compiler.partition import Partition, register_backend, unregister_backend
from taper_frontend.errors import CannotDelegate

__all__ = [
    "CannotDelegate",
    "Partition",
    "elementwise_subgraphs",
    "register_backend",
    "unregister_backend",
]
