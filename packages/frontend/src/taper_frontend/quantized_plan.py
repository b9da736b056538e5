"""Quantize the weights of a plan, and compare the result with the plan; torch is not needed."""

from __future__ import annotations

from glob import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_frontend.compiler.from_plan import plan_again, to_named_graph
from taper_frontend.compiler.memory_budget import within_budget
from taper_frontend.compiler.planning import make_schedule
from taper_frontend.compiler.quantization.choose import quantize_weights
from taper_frontend.compiler.quantization.round_activations import (
    round_activations,
    round_to_bfloat16,
)
from taper_frontend.compiler.quantization.schemes import (
    FLOAT32,
    QuantizationConfig,
    read_quantization,
)
from taper_frontend.errors import ExportError
from taper_frontend.request.notes import of_memory
from taper_runtime.executor.executor_kinds import DEFAULT_KIND
from taper_runtime.plan.binding import bind_sizes
from taper_runtime.plan.compare import describe, difference, readable, tolerance
from taper_runtime.plan.features import with_inner
from taper_runtime.plan.rows import batch_of_states
from taper_runtime.session.inference_session import InferenceSession
from taper_runtime.session.options import SessionOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taper_runtime.plan.plan import Plan


#: The largest relative error where products round activations: sums in another order move a number
#: to the next level of int8 or to the next bfloat16, if it lies between two.
_ROUNDED = 1e-2


def quantize_plan(
    plan: Plan,
    options: QuantizationConfig | str = "int8",
    *,
    packing: str | None = None,
    verify: bool = True,
    memory_budget: int | None = None,
) -> Plan:
    """Store the weights of a plan in fewer bits; torch is not needed.

    Parameters
    ----------
    plan : Plan
        A plan of one entry with float weights, for example of :func:`taper_runtime.load`. It should
        have plain weights (``packing="at_open"``): a weight that it has only as Winograd's tiles
        stays as it is.
    options : QuantizationConfig or str
        What to quantize, or the name of a scheme, such as ``"int8"``, ``"int4.64.zeros"`` or
        ``"float16"``. With ``activations="grouped"`` (``"int4_grouped"``) products by weights that
        the plan has in 4 or 8 bits round their activations, too, and with ``"rounded"``
        (``"bfloat16_rounded"``) products by bfloat16 weights.
    packing : str, optional
        What the new plan has of the weights that stay floats, ``"stored"`` or ``"at_open"``; by
        default as the plan.
    verify : bool
        Whether to run both plans on the samples and compare them; see :func:`check_quantized`.
    memory_budget : int, optional
        The bytes that the arena of the new plan may take; see :func:`taper_frontend.export`.

    Returns
    -------
    Plan
        Its ``metadata["quantized"]`` has a record for each weight, and how far the results for the
        plan's samples are from those of the plan, where it has samples.

    Raises
    ------
    ExportError
        If the plan has several entries or replaceable weights, a weight cannot have its scheme, or
        activations are to be quantized for each row or by calibrated numbers, for which
        :func:`taper_frontend.quantize` needs the module.
        Also if the results differ from those of numpy on the same integers.
    """
    asked = read_quantization(options)
    if asked.needs_module:
        raise ExportError(
            f"activations: expected '', 'rounded' or 'grouped' for a plan, got "
            f"{asked.activations!r}; "
            "quantize the module with taper_frontend.quantize and export that"
        )
    graph, names = to_named_graph(plan)
    layers = quantize_weights(graph, names, asked)
    if asked.activations:
        (round_to_bfloat16 if asked.activations == "rounded" else round_activations)(graph)
    report: dict[str, Any] = {
        "scheme": asked.weights,
        "layers": [{**layer._asdict(), "shape": list(layer.shape)} for layer in layers],
    }
    if predictions := plan.metadata.get("quantized", {}).get("predictions"):
        report["predictions"] = predictions  # of its module's layers, which keep their bytes
    at_open = None if packing is None else packing == "at_open"
    metadata, schedule = {**plan.metadata, "quantized": report}, None
    if memory_budget is not None:
        graph, schedule, told = within_budget(
            graph, make_schedule(graph), memory_budget, None, plan.samples
        )
        notes = [note._asdict() for note in of_memory(told)]
        metadata |= {"memory": told, "warnings": [*metadata.get("warnings", ()), *notes]}
    new = plan_again(plan, graph, metadata, packed_at_open=at_open, schedule=schedule)
    return (
        with_distance(check_quantized(new), _results(plan)) if verify and has_samples(new) else new
    )


def sensitivity(plan: Plan, scheme: str = "int4") -> dict[str, float]:
    """Return how far the results move when one weight alone is quantized, largest first.

    Parameters
    ----------
    plan : Plan
        As for :func:`quantize_plan`, with samples.
    scheme : str
        The scheme of the one weight.

    Returns
    -------
    dict of str to float
        For each weight the largest relative error of an output, for the plan's samples. The names
        are patterns for ``QuantizationConfig.layers``, unless they join several by `` + ``.

    Raises
    ------
    ExportError
        As :func:`quantize_plan`, or if the plan has no samples.
    """
    if not has_samples(plan):
        raise ExportError("sensitivity: expected a plan with samples, got one without")
    none = quantize_plan(plan, FLOAT32, verify=False)
    wanted, found = _results(plan), {}
    for layer in none.metadata["quantized"]["layers"]:
        if layer["reason"]:
            continue
        layers = {escape(name): scheme for name in layer["name"].split(" + ")}
        options = QuantizationConfig(weights=FLOAT32, layers=layers)
        one = with_distance(quantize_plan(plan, options, verify=False), wanted)
        apart = one.metadata["quantized"]["distance"].values()
        found[layer["name"]] = max(each["relative_error"] for each in apart)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def has_samples(plan: Plan) -> bool:
    """Return whether a plan can run on samples of its own."""
    return set(plan.samples) == set(plan.inputs)


def check_quantized(plan: Plan) -> Plan:
    """Compare a quantized plan with numpy on the same integers, and return it.

    numpy computes QUANTIZE, DEQUANTIZE and products of bytes exactly as they are defined.

    Raises
    ------
    ExportError
        If the results for the samples differ by more than rounding errors.
    """
    got, reference = _results(plan), _results(plan, "interpreted")
    limit = tolerance(plan.tensors.values())
    if any(
        node.attrs.get("activation_group") or node.attrs.get("activation_dtype")
        for node in with_inner(plan.nodes)
    ):
        limit = max(limit, _ROUNDED)
    for name, array in got.items():
        if difference(array, reference[name]).relative > limit:
            raise ExportError(
                f"output {name!r} differs from what numpy computes of the same integers: "
                f"{describe(array, reference[name], limit)}"
            )
    return plan


def with_distance(plan: Plan, wanted: Mapping[str, np.ndarray]) -> Plan:
    """Add to a quantized plan how far its results are from those of the float model.

    Parameters
    ----------
    plan : Plan
        A quantized plan with samples.
    wanted : mapping of str to numpy.ndarray
        The float model's results for the samples, by the plan's outputs.

    Returns
    -------
    Plan
        Its ``metadata["quantized"]["distance"]`` has for each output of floats the
        ``relative_error`` and the ``cosine``.
    """
    got = _results(plan)
    apart = {
        name: {
            "relative_error": difference(got[name], array).relative,
            "cosine": _cosine(got[name], array),
        }
        for name, array in wanted.items()
        if readable(array).dtype.kind == "f"
    }
    report = {**plan.metadata.get("quantized", {}), "distance": apart}
    return plan._replace(metadata={**plan.metadata, "quantized": report})


def _results(plan: Plan, executor: str = DEFAULT_KIND) -> dict[str, np.ndarray]:
    """Run a plan on its samples."""
    options = SessionOptions()
    options.executor, options.bfloat16 = executor, "bits"
    session = InferenceSession(plan, options)
    batch = batch_of_states(plan)
    states = None
    if batch:  # a state for each row
        sizes = bind_sizes(plan, {name: array.shape for name, array in plan.samples.items()})
        states = [session.new_state() for _ in range(sizes[batch])]
    outputs = session.run(None, dict(plan.samples), state=states)
    return dict(zip(plan.outputs, outputs, strict=True))


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = (readable(x).astype(np.float64).reshape(-1) for x in (a, b))
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norms if norms else 1.0
