"""Compare decomposition by calls with torch's own, value by value; `BertModel` takes some.

Each architecture is captured in float64. The program then returns what each of its calls gives, and
three programs compute these values: the captured one, the one that ``decompose_calls`` makes of it,
and the one that torch's ``run_decompositions`` makes of it with the same table.
"""

from __future__ import annotations

import argparse
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.export.graph_signature import OutputKind, OutputSpec, TensorArgument
from torch.fx import Interpreter, Node
from torch.utils._pytree import tree_map_only, tree_structure

from taper_frontend.capture.capture import copied_program, decompositions
from taper_frontend.capture.decompose import decompose_calls, is_fresh
from taper_frontend.capture.shape_rules import shape_rules
from tools.zoo import GROUPS

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from tools.zoo.architecture import Architecture

#: Relative L2 difference up to which two values are one. Some models compute in float32 whatever
#: their dtype.
TOLERANCE = 1e-5


class Difference(NamedTuple):
    """A value of a captured program that a decomposed one computes otherwise.

    Attributes
    ----------
    node : str
        The call that gives it, and its op.
    by : str
        Who decomposed: "calls" or "torch".
    error : float
        Relative L2 difference; infinity where shapes or dtypes differ.
    """

    node: str
    by: str
    error: float


def differences(program: ExportedProgram) -> tuple[bool, list[Difference]]:
    """Compare the values that a program computes before and after it is decomposed.

    Parameters
    ----------
    program : ExportedProgram
        As ``torch.export.export`` gives it, with its example inputs. It stays as it is.

    Returns
    -------
    complete : bool
        Whether ``decompose_calls`` takes the program. If not, torch's decomposition alone is
        compared.
    differences : list of Difference
        In the order of the program.
    """
    program = copied_program(program)
    nodes = _return_values(program)
    wanted = _values(program)
    table = decompositions()
    decomposed: dict[str, ExportedProgram] = {}
    with torch.no_grad(), shape_rules():
        calls = copied_program(program)
        complete = decompose_calls(calls, table)
        if complete:
            decomposed["calls"] = calls
        decomposed["torch"] = copied_program(program).run_decompositions(table)
    found = []
    for by, each in decomposed.items():
        for node, got, want in zip(nodes, _values(each), wanted, strict=True):
            error = _error(got, want)
            if not error <= TOLERANCE:
                found.append(Difference(node, by, error))
    return complete, found


def _return_values(program: ExportedProgram) -> list[str]:
    """Let a program return what its calls give instead of its own results; name the calls.

    What a later write changes and memory that has no value yet are left out.
    """
    graph = program.graph
    written = {
        _memory(node.args[0])
        for node in graph.nodes
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
    }
    nodes = [
        node
        for node in graph.nodes
        if node.op == "call_function"
        and isinstance(node.meta.get("val"), torch.Tensor)
        and _memory(node) not in written
        and "empty" not in str(node.target)
    ]
    (output,) = (node for node in graph.nodes if node.op == "output")
    output.args = (tuple(nodes),)
    program.graph_signature.output_specs[:] = [
        OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in nodes
    ]
    signature = program.module_call_graph[0].signature
    signature.out_spec = tree_structure([*nodes])
    signature.outputs = []  # those of calls of modules, whose nodes torch renames
    program.graph_module.recompile()
    return [f"{node.name} ({node.target})" for node in nodes]


def _memory(node: Any) -> Any:
    """Return the node that makes the memory of a result."""
    while isinstance(node, Node) and node.op == "call_function" and not is_fresh(node):
        node = node.args[0]
    return node


def _values(program: ExportedProgram) -> list[Any]:
    """Return the results of a program on its example inputs, and nothing that it writes back."""
    args, kwargs = program.example_inputs
    given = program._graph_module_flat_inputs(args, kwargs)
    own = tree_map_only(torch.Tensor, lambda x: x.detach().clone(), given)
    with torch.no_grad():
        results = Interpreter(program.graph_module).run(*own)
    specs = program.graph_signature.output_specs
    pairs = zip(results, specs, strict=True)
    return [value for value, spec in pairs if spec.kind is OutputKind.USER_OUTPUT]


def _error(got: torch.Tensor, want: torch.Tensor) -> float:
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return torch.inf
    wide = torch.complex128 if want.is_complex() else torch.float64
    got, want = got.to(wide), want.to(wide)
    equal = (got == want) | (got.isnan() & want.isnan())
    apart = torch.where(equal, 0, got - want).norm().item()
    return apart / want[want.isfinite()].norm().clamp(min=1e-6).item()


def judge(architecture: Architecture) -> tuple[bool, list[Difference]]:
    """Capture an architecture in float64 and compare its decompositions."""
    module, inputs = architecture.build()
    wide: Any = tree_map_only(
        torch.Tensor, lambda x: x.double() if x.dtype == torch.float32 else x, inputs
    )
    with torch.no_grad(), shape_rules():
        program = torch.export.export(module.double(), (), wide, strict=False)
    return differences(program)


def main() -> None:
    """Print what differs, and of how many architectures each call was decomposed by itself."""
    parser = argparse.ArgumentParser(description=__doc__)
    architectures = {name: each for group in GROUPS.values() for name, each in group.items()}
    every = {"choices": architectures, "metavar": "NAME", "help": "architectures; all by default"}
    parser.add_argument("names", nargs="*", **every)
    names = parser.parse_args().names
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    by_calls = refused = wrong = 0
    for name in names or architectures:
        try:
            complete, found = judge(architectures[name])
        except Exception as error:  # torch may raise anything, of its own decomposition too
            refused += 1
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
            continue
        by_calls += complete
        wrong += any(each.by == "calls" for each in found)
        for each in found[:3]:
            print(f"{name}: {each.node} by {each.by}: {each.error:.1e}", flush=True)
    print(f"{by_calls} call by call, {wrong} of them wrong; {refused} not compared")
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
