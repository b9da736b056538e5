"""List the values of a run: inputs, constants, states, nodes' outputs and sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.records import NamedTuple
from taper_runtime.ops.opdef import TensorType

if TYPE_CHECKING:
    from taper_runtime.plan.plan import Plan


class Value(NamedTuple):
    """One value of a plan.

    Attributes
    ----------
    id : int
        The position in :meth:`.Plan.values`: inputs first, then constants and states, nodes'
        outputs in order, and size variables. Names may change; ids are those of this plan.
    name : str
    kind : str
        ``"Tensor"``, or ``"SymInt"`` for a size variable. A list in arguments or results has
        several values; the trees of the plan say how they nest.
    type : TensorType
        The type; for a size variable that of an int64 scalar.
    producer : int or None
        The index of the node that computes it; None for an input, a constant or a state. For a size
        variable, the node that computes its origin; None if an input's dim gives it.
    """

    id: int
    name: str
    kind: str
    type: TensorType
    producer: int | None


def list_values(plan: Plan) -> list[Value]:
    """Return the values of a plan's default entry, without those inside blocks."""
    makers = {name: step for step, node in enumerate(plan.nodes) for name in node.outputs}
    given = dict.fromkeys([*plan.inputs, *(n for n in plan.tensors if n not in makers)])
    values = [
        Value(number, name, "Tensor", plan.tensors[name].type, makers.get(name))
        for number, name in enumerate([*given, *makers])
    ]
    for number, name in enumerate(plan.sizes, len(values)):
        tensor, _ = plan.origins.get(name, ("", 0))
        values.append(Value(number, name, "SymInt", TensorType("int64", ()), makers.get(tensor)))
    return values
