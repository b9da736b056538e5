"""Warn of plan properties that are correct but perhaps unintended."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

from taper_frontend.errors import ExportWarning
from taper_frontend.lowering.source_line import without_module
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.text import counted
from taper_runtime.formats.winograd import tile_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from taper_frontend.compiler.graph.graph import Graph
    from taper_runtime.plan.plan import Plan

#: The kinds of notes: the module's mode, nodes that numpy computes, dimensions that do not vary as
#: requested, branches that the module takes only for some sizes, arguments that became constants,
#: the size of the file, state, subgraphs that a delegate refuses, and variables of an OpenInfer
#: program that start as zeros.
#: Also quantized weights that are widened, or not rounded as the model rounds them, and a memory
#: budget that no plan fits.
KINDS = (
    *("training", "numpy", "shape", "branch", "argument", "size", "state", "delegate", "zeros"),
    *("quantized", "memory"),
)

#: A file counts as much larger than its weights from this factor and this many bytes on.
LARGE_FACTOR, LARGE_BYTES = 1.5, 500_000

#: The most names in a list.
_LISTED = 5


class Note(NamedTuple):
    """A warning: its kind, one of :data:`KINDS`, and its text: what, where, what to do."""

    kind: str
    text: str


def warn(notes: Sequence[Note]) -> None:
    """Issue each note as an :class:`taper_frontend.ExportWarning`."""
    for note in notes:
        # the relevant line is the one that called export()
        warnings.warn(ExportWarning(note.text, note.kind), stacklevel=3)


def of_partition(backend: str, left: Sequence[str]) -> list[Note]:
    """Return notes on subgraphs that a delegate refuses, with the reasons."""
    if not left:
        return []
    more = f"\n  and {len(left) - _LISTED} more" if len(left) > _LISTED else ""
    listed = "\n  ".join(left[:_LISTED])
    count = counted(len(left), "subgraph")
    text = f"the CPU computes {count} that delegate {backend!r} refuses:\n  {listed}{more}"
    return [Note("delegate", text)]


def of_mode(module: torch.nn.Module) -> list[Note]:
    """Return notes on parts in training mode that compute something else in it."""
    parts = [
        f"{name or 'the module itself'} ({type(part).__name__})"
        for name, part in module.named_modules()
        if part.training and _has_modes(part)
    ]
    if not parts:
        return []
    return [
        Note(
            "training",
            f"{_are(len(parts), 'part', 'of the module')} in training mode, and the plan computes "
            f"what training does: {_list(parts)}; call eval() before export",
        )
    ]


def of_arguments(baked: Mapping[str, Any]) -> list[Note]:
    """Return notes on arguments that are not inputs: the plan is only valid for their values."""
    if not baked:
        return []
    ints = any(type(value) is int for value in baked.values())
    return [
        Note(
            "argument",
            f"{_are(len(baked), 'argument')} not a tensor and became part of the plan, which has "
            f"no such input: {_list([f'{name}={value!r}' for name, value in baked.items()])}; "
            "pass a tensor for a value that varies from run to run"
            f"{', or give an int a name in dynamic_shapes' * ints}",
        )
    ]


def of_written(written: Sequence[str], outputs: Sequence[str]) -> list[Note]:
    """Return notes on inputs that the module writes to; the last outputs are their new values."""
    if not written:
        return []
    new = outputs[len(outputs) - len(written) :]
    listed = _list([f"{name!r} (output {now!r})" for name, now in zip(written, new, strict=True)])
    return [
        Note(
            "argument",
            f"the module writes to its arguments: {listed}; a run leaves the caller's arrays as "
            "they are and gives the new values as further outputs",
        )
    ]


def of_memory(found: Mapping[str, Any] | None) -> list[Note]:
    """Return a note on a memory budget that no plan fits: :func:`.memory_budget.report`."""
    if found is None or found["achieved"] <= found["budget"]:
        return []
    held = _list([f"{each['tensor']!r} ({each['bytes']:,} bytes)" for each in found["held"]])
    return [
        Note(
            "memory",
            f"memory_budget: expected an arena of at most {found['budget']:,} bytes, got "
            f"{found['achieved']:,}, the least that was found (without a budget "
            f"{found['natural']:,}); node {found['at']} needs them; in memory there: "
            f"{held or 'its scratch alone'}; give a larger budget, or a smaller example",
        )
    ]


def stored_bytes(graph: Graph) -> int:
    """Return the bytes of the constants and of the states' initial values."""
    constants = sum(constant.nbytes for constant in graph.constants.values())
    return constants + sum(state.first.nbytes for state in graph.states)


def of_quantized(decoded: Sequence[str], rounded: Mapping[str, str]) -> list[Note]:
    """Return notes on quantized weights that a plan does not compute with as the model does.

    Parameters
    ----------
    decoded : sequence of str
        The weights that no kernel reads as integers.
    rounded : mapping of str to str
        The weights in whose numbers the model loses bits when it decodes them, and the dtypes that
        it rounds to. The plan does not round them.
    """
    notes = []
    if decoded:
        notes.append(
            f"{_are(len(decoded), 'quantized weight')} stored as integers and decoded to float32 "
            "when a session opens, which takes memory, because no kernel computes with them: "
            f"{_list(decoded)}; see docs/quantization.md for the forms that kernels read"
        )
    if rounded:
        to = ", ".join(sorted(set(rounded.values())))
        notes.append(
            f"the model rounds {counted(len(rounded), 'decoded weight')} to {to}, and the plan "
            f"does not: {_list([*rounded])}"
        )
    return [Note("quantized", text) for text in notes]


def of_plan(plan: Plan, weights: int) -> list[Note]:
    """Return notes on properties of a plan.

    Parameters
    ----------
    plan : Plan
    weights : int
        The bytes of the module's own tensors from which the plan is made.
    """
    return [*_of_fallbacks(plan), *_of_size(plan, weights), *_of_states(plan)]


def _of_fallbacks(plan: Plan) -> list[Note]:
    """Return a note on nodes that numpy computes."""
    fallbacks = plan.metadata["fallbacks"]
    if not fallbacks:
        return []
    ops = Counter(fallback["op"] for fallback in fallbacks)
    sources = list(dict.fromkeys(without_module(f["source"]) for f in fallbacks if f["source"]))
    where = f" (at {_list(sources)})" if sources else ""
    return [
        Note(
            "numpy",
            f"{_are(len(fallbacks), 'node')} without a native kernel and computed by numpy, which "
            f"is slower: {_list([f'{n} {op}' for op, n in ops.most_common()])}{where}; "
            "taper_frontend.explain estimates their share of the time",
        )
    ]


def _of_size(plan: Plan, weights: int) -> list[Note]:
    """Return a note on a plan whose weights are much larger than the module's."""
    blobs = {node.reads[0] for node in plan.nodes if node.op == "CALL_DELEGATE"}
    stored = sum(array.nbytes for name, array in plan.constants.items() if name not in blobs)
    if stored < LARGE_FACTOR * weights or stored - weights < LARGE_BYTES:
        return []
    text = f"the plan's weights take {stored / 1e6:.1f} MB, those of the module {weights / 1e6:.1f}"
    transformed = [n for n in plan.constants if tile_of(plan.tensors[n].format) is not None]
    if transformed:
        tiles = sum(plan.constants[name].nbytes for name in transformed)
        text += (
            f": {_are(len(transformed), 'weight', 'of 3x3 convolutions')} stored as Winograd "
            f"tiles, {tiles / 1e6:.1f} MB, which makes them faster; packing='at_open' leaves the "
            "tiles out of the file, and each session makes them"
        )
    else:
        text += "; export computes values that depend only on weights, and they may be larger"
    return [Note("size", text)]


def _of_states(plan: Plan) -> list[Note]:
    """Return notes on states that an output of the same run depends on."""
    needed = set(plan.outputs)
    for node in reversed(plan.nodes):
        if needed.intersection(node.outputs):
            needed.update(node.reads)
    states = [state for state in plan.states if state in needed and state != plan.generator]
    if not states:
        return []
    return [
        Note(
            "state",
            f"the module writes to {_list(states)}, so results depend on earlier runs of the "
            "session; if that is not intended, return the new value from forward instead of "
            "keeping it",
        )
    ]


def of_attributes(changed: Mapping[str, tuple[str, str]]) -> list[Note]:
    """Return notes on attributes that a plan does not keep, with values before and after a run."""
    if not changed:
        return []
    listed = _list([f"{name} ({old}, then {new})" for name, (old, new) in changed.items()])
    return [
        Note(
            "state",
            f"a call of the module changes {listed}; a plan does not keep this change, and every "
            "run computes what the first call does; if later calls depend on it, make it a tensor "
            "of fixed shape and dtype from the beginning, such as torch.zeros(2, 3) or "
            "torch.tensor(0), which becomes a state that sessions keep",
        )
    ]


def of_first_call(parameters: Sequence[str]) -> list[Note]:
    """Return notes on parameters that the module's first call changes permanently, by name."""
    return [
        Note(
            "state",
            f"the first call of the module changes {_list(parameters)}; export made this call with "
            "the example arguments, and the plan and the module have the new values; if these "
            "depend on the arguments, call the module before export",
        )
    ]


def _has_modes(part: torch.nn.Module) -> bool:
    """Return whether a module itself, without its parts, computes something else in training."""
    import torch
    from torch.nn.modules.batchnorm import _BatchNorm
    from torch.nn.modules.dropout import _DropoutNd

    if isinstance(part, _BatchNorm):
        return True
    if isinstance(part, _DropoutNd):
        return part.p > 0
    if isinstance(part, torch.nn.RNNBase):
        return bool(part.dropout) and part.num_layers > 1
    if isinstance(part, torch.nn.MultiheadAttention):
        return bool(part.dropout)
    if type(part).__module__.startswith("torch.nn."):
        tracks = bool(getattr(part, "track_running_stats", False))
        return tracks or isinstance(part, torch.nn.RReLU)
    return "training" in _names_read(type(part), "forward", set())


def _names_read(kind: type, method: str, seen: set[str]) -> set[str]:
    """Return the names that a method reads, including methods that it calls."""
    code = getattr(getattr(kind, method, None), "__code__", None)
    if code is None or method in seen or method in ("train", "eval"):
        return set()
    seen.add(method)
    names = set(code.co_names)
    return names.union(*(_names_read(kind, name, seen) for name in code.co_names))


def _are(count: int, what: str, of: str = "") -> str:
    return " ".join(filter(None, [counted(count, what), of, "is" if count == 1 else "are"]))


def _list(parts: Sequence[str]) -> str:
    more = f" and {len(parts) - _LISTED} more" if len(parts) > _LISTED else ""
    return ", ".join(parts[:_LISTED]) + more
