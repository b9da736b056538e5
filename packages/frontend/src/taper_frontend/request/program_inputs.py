"""Read the arguments of a captured program once, for all later steps of the export."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils._pytree import tree_leaves

from taper_frontend.request.guards import shape_env
from taper_frontend.request.names import check_names, input_names
from taper_frontend.request.torch_trees import argument_placeholders, structure
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.export import ExportedProgram
    from torch.fx.experimental.symbolic_shapes import ShapeEnv


class ProgramInputs(NamedTuple):
    """The arguments of a captured program, and their names, places and values in a plan.

    Attributes
    ----------
    names : dict of str to str
        The placeholder of each argument -> the name of the input, in order.
    nodes : list of torch.fx.Node
        The placeholders that a plan has as inputs, in order: tensors, and ints that vary.
    places : list of int
        The position of each of those among the arguments.
    example : list of torch.Tensor
        What the program was captured with for each of those; empty if it does not say.
    buffers : dict of str to torch.fx.Node
        The placeholders of the program's buffers by the buffers' names.
    shape_env : ShapeEnv or None
        torch's record of the program's sizes; None for a program without tensors.
    """

    names: dict[str, str]
    nodes: list[torch.fx.Node]
    places: list[int]
    example: list[torch.Tensor]
    buffers: dict[str, torch.fx.Node]
    shape_env: ShapeEnv | None


def read_inputs(program: ExportedProgram, given: Sequence[str] | None = None) -> ProgramInputs:
    """Read the arguments of a program.

    Parameters
    ----------
    program : ExportedProgram
    given : sequence of str, optional
        The names of the plan's inputs, where a user gives them.

    Raises
    ------
    ExportError
        If ``given`` does not fit the inputs.
    """
    placeholders = argument_placeholders(program)
    spec = program.call_spec.in_spec
    signature = program.module_call_graph[0].signature
    arguments = signature.forward_arg_names if signature is not None else None
    names = input_names(placeholders, None if spec is None else structure(spec), arguments)
    all_nodes = {node.name: node for node in program.graph.nodes}
    kinds = (torch.Tensor, torch.SymInt)
    places, nodes = [], []
    for place, name in enumerate(placeholders):
        if isinstance(all_nodes[name].meta.get("val"), kinds):
            places.append(place)
            nodes.append(all_nodes[name])
    if given is not None:
        check_names("input_names", given, [names[node.name] for node in nodes])
        names |= zip((node.name for node in nodes), given, strict=True)
    example = []
    if program.example_inputs is not None:
        leaves = tree_leaves(program.example_inputs)
        example = [torch.as_tensor(leaves[place]) for place in places]
    targets = program.graph_signature.inputs_to_buffers
    buffers = {target: all_nodes[name] for name, target in targets.items()}
    return ProgramInputs(names, nodes, places, example, buffers, shape_env(program))
