"""Define the errors of an export."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base import errors
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The categories of reasons for which a node is refused.
CATEGORIES = ("op", "dtype", "dynamic shape", "mutation", "control flow", "data-dependent")


class ExportError(errors.TaperError):
    """The model cannot be exported as it was given."""


class CannotDelegate(ExportError):
    """A backend cannot compile a subgraph, which stays on the CPU; the text is the reason."""


class CaptureError(ExportError):
    """torch cannot capture the model.

    Attributes
    ----------
    reason : str
    category : str
        One of :data:`CATEGORIES`.
    source : str
        The line of the user's model, empty where unknown.
    """

    def __init__(self, what: str, reason: str, category: str, source: str) -> None:
        self.reason, self.category, self.source = reason, category, source
        place = f"\n  at {source}" if source else ""
        super().__init__(f"torch could not {what}: {reason}{place}")


class FixedSizeError(ExportError):
    """The model fixes a dimension that must vary."""


class NarrowSizeError(ExportError):
    """The model does not accept all sizes that a dimension must have."""


class BatchError(ExportError):
    """Error for a module whose state cannot have a row for each item of a batch."""


class ExportWarning(UserWarning):
    """The plan matches the module, but perhaps not the user's intention.

    Attributes
    ----------
    kind : str
        One of :data:`taper_frontend.request.notes.KINDS`.
    """

    def __init__(self, text: str, kind: str = "") -> None:
        super().__init__(text)
        self.kind = kind


class UnsupportedNode(NamedTuple):
    """One thing in a model that cannot be exported.

    Attributes
    ----------
    op : str
        The ATen op, or another description: ``"input 'x'"``, ``"buffer 'steps'"``.
    category : str
        One of :data:`CATEGORIES`.
    reason : str
    source : str
        The line of the user's model, empty where unknown.
    """

    op: str
    category: str
    reason: str
    source: str

    def __str__(self) -> str:
        place = f"\n      at {self.source}" if self.source else ""
        return f"{self.op} [{self.category}]: {self.reason}{place}"


class UnsupportedNodesError(ExportError, errors.UnsupportedOpError):
    """The model has nodes that cannot be exported.

    Attributes
    ----------
    nodes : tuple of UnsupportedNode
        All such nodes, in the order of the model.
    """

    def __init__(self, nodes: Sequence[UnsupportedNode]) -> None:
        self.nodes = tuple(nodes)
        # A layer that is repeated n times causes n equal lines; print each line once.
        lines = "\n".join(f"  - {line}" for line in dict.fromkeys(map(str, self.nodes)))
        count = len(self.nodes)
        what = "node" if count == 1 else "nodes"
        super().__init__(f"the model holds {count} unsupported {what}:\n{lines}")
