"""The frontend's one entry point: a module in, a verified plan out."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from taper_frontend.capture import Model, capture
from taper_frontend.dims import Dims, requested_dims
from taper_frontend.errors import ExportError
from taper_frontend.lowering import lower
from taper_frontend.lowering.context import to_numpy
from taper_frontend.passes import PIPELINE, Pass, run_pipeline
from taper_frontend.passes.materialize_outputs import materialize_outputs
from taper_frontend.planning import make_plan
from taper_frontend.verify import verify_plan
from taper_runtime.errors import PlanFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch.export import ExportedProgram

    from taper_frontend.graph.graph import Graph
    from taper_runtime.plan.plan import Plan


def export(
    module: Model,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    passes: Sequence[Pass] = PIPELINE,
    verify: bool = True,
    progress: bool = False,
    metadata: Mapping[str, str] | None = None,
) -> Plan:
    """Export a model to a plan.

    Parameters
    ----------
    module : torch.nn.Module, ExportedProgram, str or os.PathLike
        A module is captured in the mode it is in: call ``eval()`` first. A path is that of a
        ``.pt2`` file.
    args, kwargs
        Example arguments, nested as the module takes them. Values that are not tensors become part
        of the plan. A program or file carries its own.
    dynamic_shapes
        As ``torch.export.export`` takes them. Dimensions named here vary from run to run.
    passes : sequence of callables, optional
        The graph pipeline: ``(Graph) -> bool`` each, in order. The default is
        :data:`taper_frontend.passes.PIPELINE`; ``()`` exports the graph as lowered.
    verify : bool
        Run the plan beside the module, on the example arguments and on random ones.
    progress : bool
        Show the steps on the terminal.
    metadata : mapping of str to str, optional
        Texts of yours to keep in the plan: labels, an alphabet, a version. A session's
        ``get_modelmeta().custom_metadata_map`` has them.

    Returns
    -------
    Plan
        Its metadata holds the export report: nodes after each pass, memory, fallbacks, error.

    Raises
    ------
    UnsupportedOpError
        Listing every node that cannot be exported, with its reason and source line.
    ExportError
        If torch cannot capture the model, or fixes a dimension that ``dynamic_shapes`` lets vary,
        or the plan's results differ from the module's; or ``metadata`` is not text.
    """
    if not all(isinstance(text, str) for pair in (metadata or {}).items() for text in pair):
        raise ExportError(f"metadata: expected texts by name, got {metadata!r}")
    with _steps(progress) as step:
        step("capture")
        program = capture(module, args, kwargs, dynamic_shapes=dynamic_shapes)
        dims = requested_dims(module, program, args, kwargs, dynamic_shapes)
        plan = compile_program(program, dims, passes=passes, verify=verify, step=step)
    return plan._replace(metadata={**plan.metadata, "user": dict(metadata)}) if metadata else plan


def compile_program(
    program: ExportedProgram,
    dims: Dims | None = None,
    *,
    passes: Sequence[Pass] = PIPELINE,
    verify: bool = True,
    step: Callable[[str], None] = lambda name: None,
) -> Plan:
    """Make a plan of a program that :func:`taper_frontend.capture.capture` gave.

    Parameters
    ----------
    program : ExportedProgram
    dims : Dims, optional
        What became of the dimensions that were to vary.
    passes, verify
        As in :func:`export`.
    step : callable
        Gets the name of each step before it runs.
    """
    dims = dims or Dims({}, [])
    step("lower")
    lowered = lower(program, dims.names)
    graph = lowered.graph
    step("optimize")
    nodes_lowered = len(graph.nodes)
    # the last is the planner's condition, whatever the pipeline
    records = run_pipeline(graph, [*passes, materialize_outputs])
    step("plan")
    report = {
        "producer": f"taper_frontend {_version()}, torch {torch.__version__}",
        "nodes_lowered": nodes_lowered,
        "passes": [
            {"name": r.name, "before": r.before, "after": r.after} for r in records if r.changed
        ],
    }
    if dims.specialized:
        report["specialized"] = dims.specialized
    try:
        plan = make_plan(
            graph,
            samples=_samples(program, graph),
            input_tree=lowered.input_tree,
            output_tree=_rename_leaves(lowered.output_tree, iter(graph.outputs)),
            metadata=report,
        )
    except PlanFormatError as error:
        if not graph.sizes:
            raise
        raise ExportError(
            f"the plan is not shown to be sound for all sizes ({error}); dims with narrower ranges "
            "may be"
        ) from error
    if not verify:
        return plan
    step("verify")
    return verify_plan(plan, program)


def _samples(program: ExportedProgram, graph: Graph) -> dict[str, Any]:
    """Example inputs by name, from what the program was captured with."""
    if program.example_inputs is None:
        return {}
    args, kwargs = program.example_inputs
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return {name: to_numpy(t) for name, t in zip(graph.inputs, tensors, strict=False)}


def _rename_leaves(tree: Any, names: Iterator[str]) -> Any:
    """The output tree with its tensors' final names: a pass may have put another there."""
    kind, value = tree
    if kind == "tensor":
        return [kind, next(names)]
    if kind == "dict":
        return [kind, [[key, _rename_leaves(child, names)] for key, child in value]]
    if kind in ("list", "tuple"):
        return [kind, [_rename_leaves(child, names) for child in value]]
    return tree


def _version() -> str:
    from taper_frontend import __version__

    return __version__


@contextmanager
def _steps(show: bool) -> Iterator[Callable[[str], None]]:
    """A function that says which step is running, shown with a spinner if ``show``."""
    if not show:
        yield lambda name: None
        return
    from rich.console import Console

    with Console(stderr=True).status("export") as status:
        yield lambda name: status.update(f"export: {name}")
