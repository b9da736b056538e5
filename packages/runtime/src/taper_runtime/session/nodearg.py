"""Describe the inputs and outputs of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.dtypes import onnx_type
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import Size
from taper_runtime.plan.plan import is_converted

if TYPE_CHECKING:
    from taper_runtime.plan.plan import Plan, TensorSpec


class NodeArg(NamedTuple):
    """One input or output of a session.

    Attributes
    ----------
    name : str
    shape : list of int or str
        For a dim that varies, the name of its size variable, or an expression of several.
    type : str
        In ONNX Runtime's spelling: ``"tensor(float)"``, ``"tensor(int64)"``. For bfloat16, the type
        of the arrays that :attr:`SessionOptions.bfloat16` asks for.
    is_read : bool
        Whether the plan depends on it. False if no node reads the elements and nothing else has its
        sizes. The dtype and shape are checked all the same: the captured program may depend on
        them.
    """

    name: str
    shape: list[int | str]
    type: str
    is_read: bool = True


def describe_inputs(plan: Plan, bfloat16: str) -> list[NodeArg]:
    """Describe the inputs of an entry's plan; ``bfloat16`` is the option of that name."""
    from taper_runtime.plan.readers import unread_inputs

    unread = unread_inputs(plan)
    return [_describe(plan.tensors[name], bfloat16, name not in unread) for name in plan.inputs]


def describe_outputs(plan: Plan, bfloat16: str) -> list[NodeArg]:
    """Describe the outputs of an entry's plan; ``bfloat16`` is the option of that name."""
    return [_describe(plan.tensors[name], bfloat16, True) for name in plan.outputs]


def _describe(spec: TensorSpec, bfloat16: str, is_read: bool) -> NodeArg:
    dtype = spec.seen.dtype
    if is_converted(spec):
        from taper_runtime.session.ends import seen_dtype

        dtype = seen_dtype(spec, bfloat16)
    shape = [str(size) if isinstance(size, Size) else size for size in spec.seen.shape]
    return NodeArg(spec.name, shape, onnx_type(dtype), is_read)
