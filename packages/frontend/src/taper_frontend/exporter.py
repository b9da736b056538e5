"""Export a module: from a module to a verified plan, the frontend's one entry point."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from taper_frontend.capture.attempts import Attempt, attempt, check_range
from taper_frontend.capture.capture import Model, capture, opened
from taper_frontend.checkpoint import filled
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.partition import Partition, Regions
from taper_frontend.compiler.planning import make_plan, make_schedule, plan_unfused
from taper_frontend.compiler.trace import trace_path, tracing
from taper_frontend.errors import ExportError
from taper_frontend.lowering import lower
from taper_frontend.lowering.context import stored
from taper_frontend.lowering.keep import Keep
from taper_frontend.lowering.pytrees import argument_placeholders
from taper_frontend.request.dims import Axis, Dims, Int, check_axes, of_ranges, plan_inputs, settle
from taper_frontend.request.names import check_names, input_names, output_names
from taper_frontend.request.notes import Note, of_partition, of_plan, stored_bytes, warn
from taper_frontend.request.options import DEFAULTS, Options
from taper_frontend.request.request import Request, make_request
from taper_frontend.verify import InspectedPlan, Reference, VerificationError, verify_plan
from taper_runtime.base.buffers import aligned_copy
from taper_runtime.base.errors import InputError, PlanFormatError
from taper_runtime.base.records import NamedTuple
from taper_runtime.plan.binding import bind_sizes
from taper_runtime.plan.replaceable import without_tiles
from taper_runtime.plan.trees import TENSORS, leaves, with_leaves

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch.export import ExportedProgram

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.pipeline import Pass
    from taper_frontend.lowering.lower import Lowered
    from taper_runtime.plan.plan import Plan


#: What an export does, in order. Some come again where the first capture is of no use.
STEPS = ("capture", "lower", "optimize", "plan", "verify")


def export(
    module: Model,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_shapes: Any = None,
    dynamic_axes: Mapping[str, Any] | None = None,
    passes: Sequence[Pass | str] | None = None,
    keep: Sequence[str] = (),
    partition: Regions | None = None,
    delegate: str | None = None,
    verify: bool | str = True,
    progress: bool | Callable[[str], None] = False,
    metadata: Mapping[str, str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    trace: str | os.PathLike[str] | None = None,
    weights: str = "fixed",
    winograd: str = "stored",
) -> Plan:
    """Export a model to a plan.

    Parameters
    ----------
    module : torch.nn.Module, ExportedProgram, str or os.PathLike
        A module is captured in the mode it is in: call ``eval()`` first. A path is that of a
        ``.pt2`` file.
    args, kwargs
        Example arguments, nested as the module takes them. Values that are not tensors become part
        of the plan, but for ints to which ``dynamic_shapes`` gives a name. A program or file
        carries its own.
    input_names, output_names : sequence of str, optional
        One name for each tensor among the arguments, or the results, and each int that varies, in
        order. The default is the path to it: the argument's name, keys, fields and positions,
        joined by dots; see :mod:`taper_frontend.request.names`.
    dynamic_shapes
        As ``torch.export.export`` takes them, or with strings in place of ``Dim``: ``({0: "batch",
        1: "length"},)``. Dimensions named here vary from run to run; those of one name are one
        size. A ``Dim`` has to vary over its whole range; a string or ``Dim.AUTO`` as far as the
        model allows. An int among the arguments that has a name there, ``(None, "steps")``, or
        ``Dim.DYNAMIC``, is an input of the plan: a scalar of int64, from 0 on where shapes depend
        on it.
    dynamic_axes : mapping of str to mapping or sequence, optional
        The same by the names of the inputs, as ``torch.onnx.export`` takes them: ``{"input_ids":
        {0: "batch", 1: "length"}}``, or ``{"input_ids": [0, 1]}``. Outputs may stand there too;
        their shapes follow from the model.
    passes : sequence of callable or str, optional
        The graph pipeline: ``(Graph) -> bool`` each, in order, or the name of a stage or pass. The
        default is :data:`taper_frontend.compiler.stages.STAGES`, of which ``PIPELINE`` beside it is
        the list of steps, with the passes that :func:`taper_frontend.passes.register_pass` has
        given a place among them; ``()`` exports the graph as lowered.
    keep : sequence of str, optional
        ATen ops, such as ``"aten.relu.default"``, whose calls stay nodes of their own: no pass
        changes or fuses them, and a kernel of yours (:func:`taper_runtime.register_kernel`) can
        compute them.
    partition : callable, optional
        ``(Graph) -> regions``, each a list of nodes by their first outputs, which become nodes that
        ``delegate`` computes; ``lambda graph: [list(graph.nodes)]`` is all.
    delegate : str, optional
        The backend that makes bytes of each region: ``"c"``, or one of
        :func:`taper_frontend.delegates.register_backend`. A region that it cannot take stays on the
        CPU, with a warning that has the reason.
    verify : bool or str
        Run the plan beside the module, on the example arguments and on random ones like them.
        ``"outputs"`` compares the results. True also compares, on the example, the values inside:
        each tensor of the plan that stands for a value of the captured program. That takes one more
        run of the module, node by node, and two of the plan; where a value differs by more than
        rounding explains, up to 21 further ones tell whether float32 is why. ``"deep"`` compares
        them on the random arguments as well, and is an ExportError where True skips them: if torch
        cannot run the captured program node by node. False skips it all.
    progress : bool or callable
        Show on the terminal what runs, or call this with its name before it begins: ``"capture"``,
        ``"lower"``, ``"optimize: recognition: recognize_norms"`` for each pass of each stage,
        ``"plan"``, ``"verify"``.
    metadata : mapping of str to str, optional
        Texts of yours to keep in the plan: labels, an alphabet, a version. A session's
        ``get_modelmeta().custom_metadata_map`` has them.
    checkpoint : str or os.PathLike, optional
        A safetensors file, or the ``model.safetensors.index.json`` of several beside it, whose
        tensors are the module's: make the module on the ``meta`` device, and no process ever holds
        all of its weights. They are mapped from the disk, for verification too. The module gets its
        own tensors back. The plan's constants lie in a temporary file (``TMPDIR``) until it is
        saved and dropped. Needs the package safetensors.
    trace : str or os.PathLike, optional
        Where to write what the compiler did: a page if it ends in ``.html``, the same as JSON if in
        ``.json``. The default is what the environment variable ``TAPER_TRACE`` says. Where several
        captures are tried, it is about the last.
    weights : str
        ``"fixed"``, or ``"replaceable"``: a session can load other values of the parameters and
        persistent buffers. The compiler then does not look at the values, and the plan keeps those
        from which constants are computed; see ``docs/how-to/swap-weights.md``.
    winograd : str
        Where the tiles come from that 3x3 convolutions read in Winograd's form: ``"stored"`` in the
        plan, or made ``"at_open"`` by each session from the plain weights, of which they have 4
        times, or 16/9 of, the bytes. A smaller file, which opens more slowly, and whose tiles are
        memory of each process; see ``docs/results/winograd.md``. Runs give the same bits.

    Returns
    -------
    Plan
        Its metadata holds the export report: nodes after each pass, memory, fallbacks, error, and
        ``warnings``: a kind and a text each.

    Raises
    ------
    UnsupportedOpError
        Listing every node that cannot be exported, with its reason and source line.
    ExportError
        If the arguments do not fit, or torch cannot capture the model, or fixes a dimension that a
        ``Dim`` lets vary, or the module cannot run the example, or the plan's results differ from
        the module's, or ``metadata`` is not text, or ``trace`` cannot be written, or the
        checkpoint lacks a tensor or has one of another shape or dtype (all of them are listed), or
        there is no room for the plan's constants, or a name among ``passes`` is unknown.

    Warns
    -----
    ExportWarning
        What a user should know of a plan that is otherwise right; see
        :data:`taper_frontend.request.notes.KINDS`.
    """
    options = Options(
        input_names=input_names,
        output_names=output_names,
        dynamic_shapes=dynamic_shapes,
        dynamic_axes=dynamic_axes,
        passes=passes,
        keep=keep,
        partition=partition,
        delegate=delegate,
        verify=verify,
        progress=progress,
        metadata=metadata,
        checkpoint=checkpoint,
        trace=trace_path(trace),
        weights=weights,
        winograd=winograd,
    )
    options.check()
    with _steps(progress) as step:
        step("capture")
        model = opened(module)
        if isinstance(model, torch.nn.Module):
            request = make_request(model, args, kwargs, input_names, dynamic_shapes, dynamic_axes)
            with filled(model, checkpoint):
                plan = attempt(
                    request,
                    lambda tried: _compile(tried, request, options, step),
                )
        elif checkpoint is not None:
            raise ExportError("checkpoint: expected None, for an exported program has its tensors")
        elif dynamic_axes is not None:
            raise ExportError("dynamic_axes: expected None, for an exported program has its shapes")
        else:
            program = capture(model, dynamic_shapes=dynamic_shapes)
            compiled = compile_program(
                program, options=options, title=type(model).__name__, step=step
            )
            plan = compiled.plan
            if options.depth:
                step("verify")
                plan = verify_plan(plan, Reference(model, program), compiled.views, options.depth)
        check_axes(dynamic_axes or {}, plan)
    if options.tiles_at_open:
        plan = without_tiles(plan)
    warn([Note(**note) for note in plan.metadata["warnings"]])
    if metadata:
        plan = plan._replace(metadata={**plan.metadata, "user": dict(metadata)})
    return plan.read_only()


class Compiled(NamedTuple):
    """The results of compiling a program.

    Attributes
    ----------
    plan : Plan
    graph : Graph
        What the plan is of.
    unfused : Graph or None
        The graph before its nodes were fused, where they were.
    """

    plan: Plan
    graph: Graph
    unfused: Graph | None

    def views(self) -> list[InspectedPlan]:
        """Return a plan from before nodes were fused, and the plan: their values are compared."""
        views = [InspectedPlan(self.plan, self.graph.stands_for)]
        if self.unfused is not None:
            graph = self.unfused
            compile_graph(graph, ())
            views.insert(
                0,
                InspectedPlan(
                    plan_unfused(graph, self.plan, self.graph.constants), graph.stands_for
                ),
            )
        return views


class LoweredProgram(NamedTuple):
    """The results of lowering a program, which can be compiled.

    Its graph has a name before it is compiled (:func:`.fingerprint`), and so have options
    (:meth:`.Options.fingerprint`): what is compiled of equal ones is equal.

    Attributes
    ----------
    source : ExportedProgram
    lowered : Lowered
    dims : Dims
        What became of the dimensions that were to vary.
    axes : sequence of Axis
        Those.
    notes : sequence of Note
        What is known already that a user should know.
    """

    source: ExportedProgram
    lowered: Lowered
    dims: Dims
    axes: Sequence[Axis]
    notes: Sequence[Note]


def lower_program(
    program: ExportedProgram,
    axes: Sequence[Axis] = (),
    notes: Sequence[Note] = (),
    ints: Sequence[Int] = (),
    *,
    options: Options = DEFAULTS,
    trusting: bool = False,
    step: Callable[[str], None] = lambda name: None,
) -> LoweredProgram:
    """Lower a program that :func:`taper_frontend.capture.capture` gave.

    Parameters
    ----------
    program : ExportedProgram
    axes : sequence of Axis
        The dimensions that were to vary.
    notes : sequence of Note
        What is known already that a user should know.
    ints : sequence of Int
        The ints among the arguments that were to vary, in order.
    options : Options
    trusting : bool
        Whether sizes start where torch says, and not below.
    step : callable
        Gets the name of each step before it runs.
    """
    inputs = _input_names(program, options.input_names)
    dims = settle(program, inputs, axes, ints)
    step("lower")
    lowered = lower(
        program,
        dims.names,
        ranged=dims.ranged,
        trusting=trusting,
        inputs=inputs,
        keep=Keep(options.keep),
        replaceable=options.replaceable,
    )
    return LoweredProgram(program, lowered, dims, axes, notes)


def compile_lowered(
    program: LoweredProgram,
    *,
    options: Options = DEFAULTS,
    title: str = "model",
    step: Callable[[str], None] = lambda name: None,
) -> Compiled:
    """Make a plan of what has been lowered, whose graph is changed.

    Parameters
    ----------
    program : LoweredProgram
    options : Options
        Those that it was lowered with.
    title : str
        What a trace calls the model.
    step : callable
        Gets the name of each step before it runs.
    """
    source, lowered, dims, axes, notes = program
    graph = lowered.graph
    weights = stored_bytes(graph)
    step("optimize")
    nodes_lowered = len(graph.nodes)
    delegate = options.delegate or ""
    partition = Partition(options.partition, delegate) if options.partition else None
    unfused: list[Graph] = []
    with tracing(graph, options.trace, title):
        named = _output_names(source, lowered, options.output_names)
        records = compile_graph(
            graph,
            options.passes,
            partition=partition,
            output_names=named,
            before_fusion=lambda graph: unfused.append(graph.copy()),
            step=lambda name: step(f"optimize: {name}"),
        )
    step("plan")
    schedule = make_schedule(graph)
    report = {
        "producer": f"taper_frontend {_version()}, torch {torch.__version__}",
        "nodes_lowered": nodes_lowered,
        "passes": [
            {"name": r.name, "before": r.before, "after": r.after} for r in records if r.changed
        ],
    }
    try:
        plan = make_plan(
            graph,
            schedule,
            samples=_samples(source, graph),
            input_tree=lowered.input_tree,
            output_tree=_renamed(lowered.output_tree, iter(graph.outputs)),
            metadata=report,
            complex_ends=lowered.complex_reads
            | {graph.outputs[i] for i in lowered.complex_outputs},
            weights=lowered.weights,
            tiles_at_open=options.tiles_at_open,
        )
    except PlanFormatError as error:
        if not graph.sizes:
            raise
        raise ExportError(
            f"the plan is not shown to be sound for all sizes ({error}); dims with narrower ranges "
            "may be"
        ) from error
    found = [
        *notes,
        *dims.notes,
        *of_ranges(lowered, source, axes, dims.names),
        *of_plan(without_tiles(plan) if options.tiles_at_open else plan, weights),
        *of_partition(delegate, [] if partition is None else partition.left),
    ]
    plan = plan._replace(metadata={**plan.metadata, "warnings": [n._asdict() for n in found]})
    return Compiled(plan, graph, unfused[0] if unfused else None)


def compile_program(
    program: ExportedProgram,
    axes: Sequence[Axis] = (),
    notes: Sequence[Note] = (),
    ints: Sequence[Int] = (),
    *,
    options: Options = DEFAULTS,
    trusting: bool = False,
    title: str = "model",
    step: Callable[[str], None] = lambda name: None,
) -> Compiled:
    """Make a plan of a program: :func:`lower_program`, then :func:`compile_lowered`."""
    lowered = lower_program(
        program, axes, notes, ints, options=options, trusting=trusting, step=step
    )
    return compile_lowered(lowered, options=options, title=title, step=step)


def _compile(
    tried: Attempt,
    request: Request,
    options: Options,
    step: Callable[[str], None],
) -> Plan:
    """Make a plan of what has been captured of a module, and check that it is about its request."""

    def make(*, trusting: bool) -> Plan:
        program = tried.program
        compiled = compile_program(
            program,
            tried.axes,
            tried.notes,
            [*request.ints.values()],
            options=options,
            trusting=trusting,
            title=type(request.module).__name__,
            step=step,
        )
        plan = compiled.plan
        _check_example(plan)
        checked = options.depth or ("outputs" if tried.doubled else "")
        if not checked:
            return plan
        step("verify")
        return verify_plan(plan, Reference(request.module, program), compiled.views, checked)

    try:
        plan = make(trusting=False)
    except VerificationError:
        if not tried.axes:
            raise
        # the program may be another for sizes of 1, which torch takes for a case of its own
        plan = make(trusting=True)
    if tried.hinted:
        check_range(plan, request.axes, tried.program)
    return plan


def _check_example(plan: Plan) -> None:
    """Check that a plan takes the example: another may have been captured."""
    try:
        bind_sizes(plan, {name: array.shape for name, array in plan.samples.items()})
    except InputError as error:
        raise ExportError(f"the plan does not take the example: {error}") from error


def _input_names(program: ExportedProgram, given: Sequence[str] | None) -> dict[str, str]:
    """Return the placeholder of each argument -> the name of the input."""
    names = input_names(program)
    if given is None:
        return names
    tensors = [node.name for node in plan_inputs(program)]
    check_names("input_names", given, [names[name] for name in tensors])
    return names | dict(zip(tensors, given, strict=True))


def _output_names(
    program: ExportedProgram, lowered: Lowered, given: Sequence[str] | None
) -> list[str]:
    """Return the names of the outputs."""
    inputs = lowered.graph.reads
    names = output_names(program.call_spec.out_spec, inputs)
    kinds = [kind for kind, _ in leaves(lowered.output_tree)]
    names = [name for name, kind in zip(names, kinds, strict=True) if kind in TENSORS]
    if given is None:
        return names
    check_names("output_names", given, names)
    if clash := set(given) & set(inputs):
        raise ExportError(
            f"output_names: expected names that no input and no state has, got {min(clash)!r}"
        )
    return list(given)


def _samples(program: ExportedProgram, graph: Graph) -> dict[str, Any]:
    """Example inputs by name, from what the program was captured with."""
    if program.example_inputs is None:
        return {}
    leaves = dict(
        zip(argument_placeholders(program), tree_leaves(program.example_inputs), strict=True)
    )
    given = (torch.as_tensor(leaves[node.name]) for node in plan_inputs(program))
    return {n: aligned_copy(stored(x)) for n, x in zip(graph.inputs, given, strict=False)}


def _renamed(tree: Any, names: Iterator[str]) -> Any:
    """The output tree with its tensors' final names: a pass may have put another there."""
    return with_leaves(tree, lambda leaf: [leaf[0], next(names)] if leaf[0] in TENSORS else leaf)


def _version() -> str:
    from taper_frontend import __version__

    return __version__


@contextmanager
def _steps(show: bool | Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Give a function that is told what begins; a bar shows it, or a function of the caller's."""
    if not isinstance(show, bool):
        yield show
        return
    if not show:
        yield lambda name: None
        return
    from rich.console import Console
    from rich.progress import Progress

    # the stream as it is now: what torch writes to it is dropped
    with Progress(console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("export", total=len(STEPS))

        def step(name: str) -> None:
            of_all = STEPS.index(name.partition(":")[0])
            bar.update(task, description=f"export: {name}", completed=of_all)

        yield step
