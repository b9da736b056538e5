"""Export a module to a verified plan: the frontend's entry point.

An export reads its arguments (:mod:`.request`), captures the module (:mod:`.capture`), makes a plan
of the captured program (:mod:`.program_to_plan`), and compares the plan's results with the module's
(:mod:`.verify`). If a capture is not suitable, the module is captured in another way, and the later
steps are repeated.
"""

from __future__ import annotations

from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

from taper_frontend.capture.attempts import CapturedProgram, attempt, check_range
from taper_frontend.capture.capture import Model, capture, read_model
from taper_frontend.capture.tensors import to_numpy
from taper_frontend.checkpoint import filled
from taper_frontend.compiler.quantization.schemes import read_quantization
from taper_frontend.compiler.trace import trace_path
from taper_frontend.errors import ExportError
from taper_frontend.export_progress import show_progress
from taper_frontend.lowered_to_plan import compile_lowered, finish_plan
from taper_frontend.lowering.keep import Keep
from taper_frontend.plan_cache import cached_file, cached_graph
from taper_frontend.program_to_plan import lower_program
from taper_frontend.quantized_plan import with_distance
from taper_frontend.request.dims import check_axes
from taper_frontend.request.notes import Note, warn
from taper_frontend.request.options import Options
from taper_frontend.request.program_inputs import read_inputs
from taper_frontend.request.request import make_request
from taper_frontend.verify.reference import Reference
from taper_frontend.verify.trials import VerificationError, verify_plan
from taper_runtime.base.errors import InputError
from taper_runtime.plan.binding import bind_sizes

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from taper_frontend.compiler.partition import Subgraphs
    from taper_frontend.compiler.pipeline import Pass
    from taper_frontend.compiler.quantization.schemes import QuantizationConfig
    from taper_frontend.export_progress import ExportProgress
    from taper_runtime.plan.plan import Plan


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
    partition: Subgraphs | None = None,
    delegate: str | None = None,
    verify: bool | str = True,
    progress: bool | Callable[[str], None] = False,
    metadata: Mapping[str, str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    trace: str | os.PathLike[str] | None = None,
    weights: str = "fixed",
    packing: str = "stored",
    model: str | None = None,
    quantize: QuantizationConfig | str | None = None,
    strict: bool = False,
    cache: str | os.PathLike[str] | bool | None = None,
    memory_budget: int | None = None,
    tuned: str | os.PathLike[str] | None = None,
    require_tuned: bool = False,
    other_bits: bool = False,
) -> Plan:
    """Export a model to a plan.

    Parameters
    ----------
    module : torch.nn.Module, ExportedProgram, str or os.PathLike
        A module is captured in its current mode: call ``eval()`` first. A path names a ``.pt2``
        file.
    args : tuple
        Example arguments, nested as the module takes them. Values that are not tensors become part
        of the plan, except ints to which ``dynamic_shapes`` gives a name. A program or file has its
        own.
    kwargs : mapping of str to object, optional
        Example arguments by name.
    dynamic_shapes : tuple, list or mapping, optional
        As ``torch.export.export`` takes them, or with strings in place of ``Dim``: ``({0: "batch",
        1: "length"},)``. Arguments that a mapping does not name are fixed. Dimensions named here
        vary from run to run; those of one name are one size. A ``Dim`` has to vary over its whole
        range; a string or ``Dim.AUTO`` as far as the model allows. An int among the arguments that
        has a name there, ``(None, "steps")``, or ``Dim.DYNAMIC``, is an input of the plan: a scalar
        of int64, from 0 on where shapes depend on it. A dict may also name buffers that the module
        writes to, and tensors in its plain attributes, as the plan names these states: ``{"x": {0:
        "batch"}, "cache": {0: "batch"}}``. All states then have a row for each item of the batch,
        which begins as the buffer's rows do, and a run takes a list of
        :class:`~taper_runtime.State`.
    dynamic_axes : mapping of str to mapping or sequence, optional
        The same by the names of the inputs, as ``torch.onnx.export`` takes them: ``{"input_ids":
        {0: "batch", 1: "length"}}``, or ``{"input_ids": [0, 1]}``. States may stand there as in
        ``dynamic_shapes``. Outputs may stand there too; their shapes follow from the model.
    input_names : sequence of str, optional
        One name for each tensor and each varying int among the arguments, in order. By default the
        path to it: the argument's name, keys, fields and positions, joined by dots; see
        :mod:`taper_frontend.request.names`.
    output_names : sequence of str, optional
        The same for the results.

    Other Parameters
    ----------------
    weights : str
        ``"fixed"``, or ``"replaceable"``: a session can load other values of the parameters and
        persistent buffers. The compiler then does not look at the values, and the plan keeps those
        from which constants are computed; see ``docs/how-to/swap-weights.md``.
    packing : str
        Where weights come from in the formats that kernels read, such as panels or Winograd's
        tiles: ``"stored"`` in the plan, or made ``"at_open"`` by each session from plain weights.
        Then the plan has the plain weights and recipes alone: a smaller file, which opens more
        slowly, and whose packed weights are memory of each process; see
        ``docs/design/weights.md``. Runs give the same bits. Quantized weights stay as they are.
    quantize : QuantizationConfig or str, optional
        Store float weights in fewer bits: ``"int8"``, ``"int4"``, ``"float16"`` or another scheme
        (:func:`.parse_scheme`), or options. The float plan is compared with the module first, and
        the quantized one with numpy on the same integers; ``metadata["quantized"]`` tells of each
        weight, and how far the results are from the module's. See ``docs/quantization.md``.
    strict : bool
        Refuse a model whose quantized weights no kernel reads as integers, or whose decoded weights
        the plan does not round as the model does, instead of warning of it.
    cache : str, os.PathLike, bool or None
        A folder with plans of earlier exports. If it has one of the same lowered graph, weights,
        example, options and version, or of the same ``.pt2`` file or ExportedProgram, the plan is
        not made again; its results are compared with the module's as ``verify`` says, but not the
        values inside. None takes the folder in ``TAPER_CACHE_DIR``, if that is set; False uses
        none.
        ``metadata["cache"]`` tells what was found; see ``docs/how-to/cache.md``.
    memory_budget : int, optional
        The bytes that the arena of a run on one thread may take on this machine, for the example's
        sizes. If it would take more, nodes run in another order, are split into smaller parts, or
        are computed again beside late readers, at the least estimated time; results have the same
        bits. If nothing fits, the plan has the smallest arena that was found, with a warning.
        ``metadata["memory"]`` tells what was done; see ``docs/how-to/memory-budget.md``.
    tuned : str or os.PathLike, optional
        A database of measured times that ``taper tune`` wrote. Chains of nodes that have times
        there, for this CPU, ISA level and the default number of threads, are split in the way that
        won, and weights have the format that won. Nothing is measured now. Without times the
        estimates decide; ``metadata["tuned"]`` tells which; see ``docs/how-to/tune.md``.
    require_tuned : bool
        Refuse a model of which a chain or a weight for which there is a choice has no measured
        times.
    other_bits : bool
        Whether ``tuned`` may choose formats with which results differ in their last bits, such as
        forms of Winograd.
    metadata : mapping of str to str, optional
        Further texts to store in the plan: labels, an alphabet, a version. A session returns them
        in ``get_modelmeta().custom_metadata_map``.
    checkpoint : str or os.PathLike, optional
        A safetensors file, or the ``model.safetensors.index.json`` of several in its folder, with
        the module's tensors. Make the module on the ``meta`` device; then no process ever holds all
        of its weights, which are mapped from the disk, also for verification. The module's own
        tensors are restored at the end. The plan's constants are in a temporary file (``TMPDIR``)
        until the plan is saved and deleted. Needs the package safetensors.
    verify : bool or str
        Whether to run the plan and the module on the example arguments and on similar random ones,
        and compare them. ``"outputs"`` compares the results. True also compares, on the example,
        the values inside: each tensor of the plan that holds a value of the captured program. This
        takes one more run of the module, node by node, and two of the plan. If a value differs by
        more than rounding errors, up to 21 further runs show whether float32 explains it.
        ``"deep"`` compares the values inside on the random arguments, too, and raises ExportError
        if torch cannot run the captured program node by node; True skips them in this case. False
        compares nothing.
    progress : bool or callable
        Whether to show on the terminal what runs, or a function to call with each step's name
        before it begins: ``"capture"``, ``"lower"``, ``"optimize: recognition: recognize_norms"``
        for each pass of each stage, ``"plan"``, ``"verify"``.
    trace : str or os.PathLike, optional
        A path for a trace of the compiler: a page if it ends in ``.html``, JSON if it ends in
        ``.json``. By default the path in the environment variable ``TAPER_TRACE``. If several
        captures are tried, the trace is about the last one.
    keep : sequence of str, optional
        Ops that the exported program calls, such as ``"aten.relu.default"`` or
        ``"aten.softmax.int"``. Their calls stay separate nodes: no pass changes or fuses them, and
        a user's kernel (:func:`taper_runtime.register_kernel`) can compute them. If an op has no
        handler and no decomposition, only such a kernel can.
    passes : sequence of callable or str, optional
        The passes in order: functions ``(Graph) -> bool``, or names of stages or passes. By default
        :data:`taper_frontend.compiler.stages.STAGES`, with the passes that
        :func:`taper_frontend.passes.register_pass` has placed among them; ``PIPELINE`` in the same
        module is the list of their steps. ``()`` exports the graph as lowered.
    partition : callable, optional
        ``(Graph) -> subgraphs``, each a list of nodes, or of their first outputs. Each subgraph
        becomes a node that ``delegate`` computes. ``lambda graph: [list(graph.nodes)]`` selects
        everything.
    delegate : str, optional
        The backend that compiles each subgraph: ``"c"``, or one of
        :func:`taper_frontend.delegates.register_backend`. A subgraph that it refuses stays on the
        CPU, with a warning that has the reason.

    Returns
    -------
    Plan
        Its metadata contain the export report: nodes after each pass, memory, fallbacks, errors,
        and ``warnings``, each with a kind and a text.

    Raises
    ------
    UnsupportedNodesError
        If nodes cannot be exported; the message lists all of them, with reasons and source lines.
    ExportError
        If the arguments do not fit, or torch cannot capture the model, or fixes a dimension that a
        ``Dim`` lets vary, or states cannot have a row for each item of a batch, or the module
        cannot run the example, or the plan's results differ from the module's, or ``metadata`` is
        not text, or ``trace`` cannot be written, or the checkpoint lacks a tensor or has one of
        another shape or dtype (all of them are listed), or there is no room for the plan's
        constants, or a name among ``passes`` is unknown.

    Warns
    -----
    ExportWarning
        If the plan is correct, but perhaps not as intended; see
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
        packing=packing,
        model=model,
        quantize=quantize,
        strict=strict,
        cache=cache,
        memory_budget=memory_budget,
        tuned=tuned,
        require_tuned=require_tuned,
        other_bits=other_bits,
    )
    options.check()
    save = partial(torch.export.save, module) if isinstance(module, ExportedProgram) else None
    plan = cached_file(module, options, partial(_export, module, args, kwargs), save)
    warn([Note(**note) for note in plan.metadata["warnings"]])
    return plan


def _export(
    module: Model, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, options: Options
) -> Plan:
    """Export a model with options that were checked."""
    with show_progress(options.progress) as step:
        step("capture")
        read = read_model(module, options.model)
        if isinstance(read, torch.nn.Module) and _is_from(read, "transformers.integrations.gguf"):
            from taper_frontend.quantized_checkpoint.gguf_modules import with_decoded_blocks

            read = with_decoded_blocks(read)
        before = read
        if isinstance(read, torch.nn.Module) and _is_from(read, "torch.ao.nn"):
            from taper_frontend.quantizing.unpack import unpacked

            read = unpacked(read)
        if options.quantizes_activations and options.quantize is not None:
            step("quantize")
            if not isinstance(read, torch.nn.Module) or options.checkpoint is not None:
                got = "a checkpoint" if options.checkpoint is not None else "an exported program"
                raise ExportError(
                    "quantize: expected a module with its weights to quantize activations, got "
                    f"{got}"
                )
            read = quantized_module(read, options.quantize, [_batch(read, args, kwargs)])
        if isinstance(read, torch.nn.Module):
            plan = _export_module(read, args, kwargs, options, step)
        else:
            plan = _export_program(read, options, step)
        if read is not before and isinstance(before, torch.nn.Module) and options.verify:
            plan = _with_distance(plan, before, args, kwargs)
        if predictions := getattr(read, "taper_predictions", None):
            plan = _with_predictions(plan, predictions)
        check_axes(options.dynamic_axes or {}, plan)
        if options.quantizes_weights:
            step("quantize")
        return finish_plan(plan, options)


def _is_from(module: torch.nn.Module, package: str) -> bool:
    """Return whether a module has layers that a package defines."""
    return any(type(each).__module__.startswith(package) for each in module.modules())


def _batch(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> Any:
    """Return the example as a batch of calibration data; only its sizes matter."""
    if not kwargs or not isinstance(model, torch.nn.Module):
        return args
    return signature(model.forward).bind(*args, **kwargs).arguments


def _with_predictions(plan: Plan, predictions: list[dict[str, Any]]) -> Plan:
    """Add to a plan's report which layers were predicted to be faster with bytes."""
    report = {**plan.metadata.get("quantized", {}), "predictions": predictions}
    return plan._replace(metadata={**plan.metadata, "quantized": report})


def quantized_module(
    module: torch.nn.Module,
    quantize: QuantizationConfig | str,
    calibration: list[Any] | None = None,
) -> torch.nn.Module:
    """Return a module that multiplies bytes, as :func:`taper_frontend.quantize` does.

    Raises
    ------
    ExportError
        As that, or if the activations have static ranges, which need data.
    """
    from taper_frontend.quantizing.module import quantize as quantized

    asked = read_quantization(quantize)
    if asked.activations == "static":
        raise ExportError(
            "quantize: expected no 'static' activations, which need data; call "
            "taper_frontend.quantize(module, config, calibration) and export its result"
        )
    return quantized(module, asked, calibration)


def _with_distance(
    plan: Plan, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
) -> Plan:
    """Add how far a plan's results are from those of the module before it was quantized."""
    with torch.no_grad():
        results = tree_leaves(module(*args, **(kwargs or {})))
    wanted = [to_numpy(x) for x in results if isinstance(x, torch.Tensor)]
    if len(wanted) != len(plan.outputs):
        return plan  # it returns numbers, or one tensor twice
    return with_distance(plan, dict(zip(plan.outputs, wanted, strict=True)))


def _export_module(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    options: Options,
    step: ExportProgress,
) -> Plan:
    """Capture a module until a capture can be used, and make a verified plan of that."""
    request = make_request(module, args, kwargs, options)

    def use(captured: CapturedProgram) -> Plan:
        try:
            plan = _make_plan(module, captured, options, step)
        except VerificationError:
            if not captured.axes or any(axis.tensor is None for axis in captured.axes):
                raise  # rows of states are a batch of any size from 1 on
            # the program may be another for sizes of 1, which torch takes for a case of its own
            plan = _make_plan(module, captured, options, step, trusting=True)
        if captured.hinted:
            check_range(plan, request.axes, captured.inputs)
        return plan

    with filled(module, options.checkpoint):
        return attempt(request, use)


def _export_program(program: ExportedProgram, options: Options, step: ExportProgress) -> Plan:
    """Make a verified plan of a program that torch has captured."""
    if options.checkpoint is not None:
        raise ExportError("checkpoint: expected None, because an exported program has its tensors")
    if options.dynamic_axes is not None:
        raise ExportError("dynamic_axes: expected None, for an exported program has its shapes")
    keep = Keep(options.keep)
    decomposed = capture(program, dynamic_shapes=options.dynamic_shapes, keep=keep)
    captured = CapturedProgram(decomposed, read_inputs(decomposed, options.input_names))
    return _make_plan(program, captured, options, step)


def _make_plan(
    model: torch.nn.Module | ExportedProgram,
    captured: CapturedProgram,
    options: Options,
    step: ExportProgress,
    *,
    trusting: bool = False,
) -> Plan:
    """Make a plan of what has been captured of a model, and verify it."""
    lowered = lower_program(captured, options, trusting=trusting, step=step)
    depth = options.depth or ("outputs" if captured.doubled else "")
    reference = Reference(model, captured.program, captured.inputs.places)

    def make() -> Plan:
        compiled = compile_lowered(lowered, options, title=type(model).__name__, step=step)
        if isinstance(model, torch.nn.Module):
            _check_example(compiled.plan)
        if not depth:
            return compiled.plan
        step("verify")
        return verify_plan(compiled.plan, reference, compiled.views, depth)

    def check(plan: Plan) -> None:
        if depth:
            step("verify")
            verify_plan(plan, reference, list, "outputs")

    return cached_graph(lowered, options, make, check)


def _check_example(plan: Plan) -> None:
    """Check that a plan accepts the example: another one may have been captured."""
    try:
        bind_sizes(plan, {name: array.shape for name, array in plan.samples.items()})
    except InputError as error:
        raise ExportError(f"the plan does not accept the example inputs: {error}") from error
