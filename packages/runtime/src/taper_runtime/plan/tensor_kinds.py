"""Tell which tensors and nodes of a plan are alike, so that checks of them are made once.

Layers repeat types, places and attrs. A check whose answer depends on these alone is remembered by
them; the names that a plan gives to tensors are checked for each one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.ops.opdef import contiguous_strides

if TYPE_CHECKING:
    from taper_runtime.ops.opdef import Shape, TensorType
    from taper_runtime.plan.plan import PlanNode


class Kind:
    """Properties of all tensors of one type; equal types of a plan have the same object.

    Attributes
    ----------
    type : TensorType
    storage : TensorType
        The type of the array that stores the tensor.
    nbytes : int
        Bytes of that array; may be a size expression.
    strides : tuple of int
        Row-major strides of that array, in elements.
    """

    __slots__ = ("nbytes", "storage", "strides", "type")

    def __init__(self, type: TensorType) -> None:
        self.type = type
        self.storage: TensorType = type.storage
        self.nbytes: int = self.storage.nbytes
        self.strides: Shape = contiguous_strides(self.storage.shape)


class Kinds(dict["TensorType", Kind]):
    """The kinds of a plan's tensors, by their types; each is made when it is first looked up."""

    def __missing__(self, type: TensorType) -> Kind:
        kind = self[type] = Kind(type)
        return kind


def form_of(node: PlanNode) -> tuple[object, ...]:
    """Return a key that nodes have in common if they have the same op and attrs.

    It has the types of values, because ``True == 1 == 1.0``. If a value is one that no attr can
    have, such as a dict, the key has no hash.
    """
    if not node.attrs:
        return (node.op,)
    values = [tuple(each) if type(each) is list else each for each in node.attrs.values()]
    inside = [item for each in values if type(each) is tuple for item in each]
    return (node.op, *node.attrs, *values, *map(type, values), *map(type, inside))
