"""Read which dims the user lets vary, and report what torch made of them."""

from __future__ import annotations

import inspect
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch
from torch.export import AdditionalInputs, Dim, ShapesCollection
from torch.export.dynamic_shapes import _combine_args, _DimHint, _DimHintType, _tree_map_with_path
from torch.utils._pytree import (
    BUILTIN_TYPES,
    SUPPORTED_NODES,
    keystr,
    tree_flatten,
    tree_flatten_with_path,
    tree_leaves,
)

from taper_frontend.errors import BatchError, ExportError, FixedSizeError
from taper_frontend.request.guards import (
    TakenBranch,
    decisions,
    line_that_fixed,
    lines_that_bound,
)
from taper_frontend.request.notes import Note
from taper_frontend.request.size_advice import size_advice
from taper_frontend.request.size_names import name_by_place, name_int
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import UNBOUNDED, bounds, is_name, is_static, linear

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import sympy
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    from torch.utils._pytree import TreeSpec

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.lowering.lower import Lowered, Survey
    from taper_frontend.request.program_inputs import ProgramInputs
    from taper_runtime.plan.plan import Plan


#: Name of the argument that passes states whose dims vary to a program.
STATES = "taper_states"


class Axis(NamedTuple):
    """Dimension of an input or a state that should vary.

    Attributes
    ----------
    tensor : int or None
        The index of the input among the tensors and varying ints of the arguments; None for a
        state.
    axis : int
    input : str
        The name of the input, or of the buffer for a state.
    source : str
        torch's name of its size.
    size : int
        The size in the example.
    name : str
        The user's name; empty if none was given.
    dim : Dim, hint or int
        The argument for torch.
    required : bool
        Whether it is an error if the model fixes it.
    """

    tensor: int | None
    axis: int
    input: str
    source: str
    size: int
    name: str
    dim: Any
    required: bool

    @property
    def where(self) -> str:
        """Return the dimension in words."""
        kind = "state" if self.tensor is None else "input"
        return f"dimension {self.axis} of {kind} {self.input!r}"

    def held_by(self, tensors: Graph | Plan) -> int:
        """Return the dimension's size in a graph or a plan."""
        name = self.input if self.tensor is None else tensors.inputs[self.tensor]
        return tensors.tensors[name].shape[self.axis]

    def captured_by(self, inputs: ProgramInputs) -> Any:
        """Return the dimension's size in a captured program, as torch has it."""
        buffers, nodes = inputs.buffers, inputs.nodes
        node = buffers[self.input] if self.tensor is None else nodes[self.tensor]
        return node.meta["val"].shape[self.axis]

    @property
    def varies(self) -> bool:
        """Return whether the dimension should vary at all."""
        hint = self.dim.type if isinstance(self.dim, _DimHint) else None
        return not isinstance(self.dim, int) and hint != _DimHintType.STATIC


class Int(NamedTuple):
    """An int among the arguments that should vary.

    Attributes
    ----------
    name : str
        The user's name for its value; empty if none was given.
    """

    name: str


class Dims(NamedTuple):
    """The outcome for each dimension of a program's inputs: fixed, or varying in a range.

    Attributes
    ----------
    names : dict of str to str
        For each of torch's symbols, its name.
    ranged : frozenset of str
        The symbols whose smallest size was given by the user.
    notes : list of Note
        Notes on dimensions that do not vary as requested.
    """

    names: dict[str, str]
    ranged: frozenset[str]
    notes: list[Note]


def requested_shapes(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> tuple[dict[int, Any], dict[str, Any]]:
    """Return the entries of ``dynamic_shapes`` for leaves and for buffers.

    The leaves are those of ``(args, kwargs)``, in order. Arguments without an entry are fixed. An
    entry whose name is not an argument's is for a buffer.

    Raises
    ------
    ExportError
        If it does not fit the arguments, or has an entry for a value that is neither a tensor nor
        an int.
    """
    if isinstance(dynamic_shapes, ShapesCollection | AdditionalInputs):
        all_shapes = dynamic_shapes.dynamic_shapes
        dynamic_shapes = all_shapes(module, args, dict(kwargs))  # type: ignore[no-untyped-call]
    if not dynamic_shapes:
        return {}, {}
    found: dict[int, Any] = {}

    def collect(path: Any, leaf: _Leaf, wanted: Any) -> None:
        if not wanted:
            return
        if not isinstance(leaf.value, torch.Tensor) and type(leaf.value) is not int:
            raise ExportError(
                f"dynamic_shapes: {_spell(path)}: expected None for an argument that is "
                f"neither a tensor nor an int, got {wanted}"
            )
        found[leaf.place] = wanted

    combined = _combined(module, args, kwargs)
    if isinstance(dynamic_shapes, tuple | list):
        if len(dynamic_shapes) != len(combined):
            raise ExportError(
                f"dynamic_shapes: expected one entry for each of {len(combined)} arguments "
                f"({', '.join(combined)}), got {len(dynamic_shapes)}"
            )
        dynamic_shapes = dict(zip(combined, dynamic_shapes, strict=True))
    shapes, others = _by_argument(module, combined, dynamic_shapes)
    try:
        _tree_map_with_path(collect, combined, shapes, tree_name="inputs")
    except ExportError:
        raise
    except Exception as error:  # torch's error if the structure differs from that of the arguments
        raise ExportError(f"dynamic_shapes: {str(error).splitlines()[0]}") from error
    return found, others


def _by_argument(
    module: torch.nn.Module, combined: Mapping[str, Any], dynamic_shapes: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the entries for the arguments, None for those without, and the other entries.

    What ``forward`` takes as ``**kwargs`` may stand among the arguments, by its own name.
    """
    shapes = {name: dynamic_shapes.get(name) for name in combined}
    others = {name: dynamic_shapes[name] for name in dynamic_shapes if name not in combined}
    for parameter in inspect.signature(module.forward).parameters.values():
        if parameter.kind == parameter.VAR_KEYWORD and parameter.name in combined:
            named = combined[parameter.name]
            given = dict.fromkeys(named) | (shapes[parameter.name] or {})
            given |= {name: others.pop(name) for name in named if name in others}
            shapes[parameter.name] = given
    return shapes, others


def requested_ints(leaves: Sequence[Any], shapes: Mapping[int, Any]) -> dict[int, Int]:
    """Return the ints among the leaves that should vary, by index.

    Raises
    ------
    ExportError
        If one should vary in a way that ints cannot.
    """
    ints = {}
    for place, wanted in shapes.items():
        if isinstance(leaves[place], torch.Tensor):
            continue
        if not (is_name(wanted) if isinstance(wanted, str) else isinstance(wanted, _DimHint)):
            raise ExportError(
                "dynamic_shapes: expected a name of letters, digits and _, or Dim.DYNAMIC, for an "
                f"int that varies, got {wanted!r}"
            )
        if isinstance(wanted, str) or wanted.type != _DimHintType.STATIC:
            ints[place] = Int(wanted if isinstance(wanted, str) else "")
    return ints


def requested_axes(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    inputs: Mapping[int, str],
    shapes: Mapping[int, Any],
) -> list[Axis]:
    """Return the dimensions of the inputs that should vary.

    Parameters
    ----------
    module : torch.nn.Module
    args, kwargs
        Its example arguments.
    inputs : mapping of int to str
        The names of the leaves that are inputs of the plan, by index, in order.
    shapes : mapping of int to object
        The result of :func:`requested_shapes` or :func:`shapes_by_name`.

    Raises
    ------
    ExportError
        If the dimensions do not fit the arguments.
    """
    axes: list[Axis] = []
    leaves, sources = tree_leaves((args, kwargs)), _leaf_sources(module, args, kwargs)
    for number, (place, name) in enumerate(inputs.items()):
        x, wanted = leaves[place], shapes.get(place)
        if wanted is None or not isinstance(x, torch.Tensor):
            continue
        for axis, dim in wanted.items() if isinstance(wanted, dict) else enumerate(wanted):
            if dim is not None:
                axes.append(_axis(number, name, sources[place], x, axis, dim))
    return axes


def state_axes(
    module: torch.nn.Module, states: Mapping[str, Any], *, are_outputs: bool
) -> list[Axis]:
    """Return the dimensions of a module's buffers that should vary.

    Parameters
    ----------
    module : torch.nn.Module
        The module, in which tensors in plain attributes that are state have become buffers.
    states : mapping of str to object
        Names of buffers, with the requested shape of each.
    are_outputs : bool
        Whether unknown names may be names of outputs.

    Raises
    ------
    ExportError
        If there is no such buffer, the request does not fit it, or asks for more than one
        dimension.
    BatchError
        If the rows of a buffer are not equal along that dimension.
    """
    buffers = dict(module.named_buffers(remove_duplicate=False))
    axes = []
    for name, wanted in states.items():
        if name not in buffers and not are_outputs:
            known = ", ".join(buffers) or "none"
            raise ExportError(
                "dynamic_shapes: expected names of arguments, or of buffers that the module "
                f"writes to ({known}), got {name!r}"
            )
        if name not in buffers or not wanted:
            continue
        x = buffers[name]
        pairs = wanted.items() if isinstance(wanted, dict) else enumerate(wanted)
        source = f"L['{STATES}']['{name}']"
        own = [_axis(None, name, source, x, axis, dim) for axis, dim in pairs if dim is not None]
        if len(own) > 1:
            raise ExportError(
                f"dynamic_shapes of state {name!r}: expected one dimension, that of the batch, "
                f"got {[axis.axis for axis in own]}"
            )
        for axis in own:
            rows = x.detach().unbind(axis.axis)
            if not rows or any(not torch.equal(_bits(rows[0]), _bits(row)) for row in rows[1:]):
                raise BatchError(
                    f"{axis.where} varies with the batch: expected equal rows in the buffer, which "
                    f"every row of a batch begins with, got {axis.size} different rows; give the "
                    "buffer one row"
                )
        axes += own
    return axes


def _bits(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor's values in a form in which NaN equals NaN."""
    x = x.contiguous().resolve_conj().resolve_neg()
    return x.reshape(-1).view(torch.uint8) if x.numel() else x


def shapes_by_name(
    dynamic_axes: Mapping[str, Any], inputs: Mapping[int, str]
) -> tuple[dict[int, Any], dict[str, Any]]:
    """Return the entries of ``dynamic_axes`` for leaves, and for other names.

    The other names are of states and outputs. Shapes of outputs are ignored: the model decides
    them.
    """
    given = {
        name: dict(axes) if hasattr(axes, "keys") else dict.fromkeys(axes, Dim.AUTO)
        for name, axes in dynamic_axes.items()
        if axes
    }
    leaves = {place: given.pop(name) for place, name in inputs.items() if name in given}
    return leaves, given


def _leaf_sources(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[str]:
    """Return what torch calls each leaf of ``(args, kwargs)``."""
    paths, _ = tree_flatten_with_path(_combine_args(module, args, kwargs))
    places = (leaf.place for leaf in tree_leaves(_combined(module, args, kwargs)))
    sources = dict(zip(places, (f"L{keystr(path)}" for path, _ in paths), strict=True))
    return [sources[place] for place in range(len(sources))]


def torch_shapes(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    axes: Sequence[Axis],
    ints: Mapping[int, Int],
) -> Any:
    """Return the varying dimensions in the form of torch.export; None if nothing varies."""
    if not axes and not ints:
        return None
    leaves = tree_leaves((args, dict(kwargs)))
    places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor) or i in ints]
    wanted: dict[int, Any] = dict.fromkeys(ints, Dim.DYNAMIC)
    states: dict[str, Any] = {}
    for axis in axes:
        if axis.tensor is None:
            states[axis.input] = {axis.axis: axis.dim}
        else:
            wanted.setdefault(places[axis.tensor], {})[axis.axis] = axis.dim
    combined = _combined(module, args, kwargs)
    shapes = _tree_map_with_path(lambda path, leaf: wanted.get(leaf.place), combined)
    return {STATES: states, **shapes} if states else shapes


class _Leaf:
    """A leaf of the arguments, with its index."""

    def __init__(self, place: int, value: Any) -> None:
        self.place = place
        self.value = value


def _combined(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the arguments by name, each leaf with its index."""
    leaves, spec = tree_flatten((args, dict(kwargs)))
    marked = _unflattened(spec, (_Leaf(place, leaf) for place, leaf in enumerate(leaves)))
    return _combine_args(module, *marked)


def _unflattened(spec: TreeSpec, leaves: Iterator[_Leaf]) -> Any:
    """Return a tree of leaves, with lists in place of objects of users' classes.

    A class may compute with its parts when it is made, as a cache of transformers does; and
    torch.export accepts lists of shapes for it.
    """
    if spec.is_leaf():
        return next(leaves)
    parts = [_unflattened(child, leaves) for child in spec.children()]
    if spec.type not in BUILTIN_TYPES:
        return parts
    return SUPPORTED_NODES[spec.type].unflatten_fn(parts, spec.context)


def settle(inputs: ProgramInputs, axes: Sequence[Axis], ints: Sequence[Int] = ()) -> Dims:
    """Name the sizes that vary, and report the result for each requested one.

    Parameters
    ----------
    inputs : ProgramInputs
    axes : sequence of Axis
        The dimensions that should vary.
    ints : sequence of Int
        The ints that vary, in order.

    Raises
    ------
    ExportError
        If a required one does not vary.
    """
    dims = Dims({}, frozenset(), [])
    ranged: set[str] = set()
    for axis in sorted(axes, key=lambda axis: hasattr(axis.dim, "root")):
        if not axis.varies:
            continue
        size = axis.captured_by(inputs)
        expr = size.node.expr if isinstance(size, torch.SymInt) else None
        if expr is None or expr.is_number:
            dims.notes.append(_note_of_fixed(axis, line_that_fixed(inputs.shape_env, axis.source)))
            continue
        symbols = sorted(map(str, expr.free_symbols))
        if axis.name and (expr.is_symbol or (hasattr(axis.dim, "root") and len(symbols) == 1)):
            dims.names.setdefault(symbols[0], axis.name)
        if isinstance(axis.dim, Dim) or getattr(axis.dim, "min", None) is not None:
            ranged.update(symbols)
    _name_ints(dims.names, inputs, ints)
    _name_by_place(dims.names, inputs)
    return dims._replace(ranged=frozenset(ranged))


def _name_ints(names: dict[str, str], inputs: ProgramInputs, ints: Sequence[Int]) -> None:
    """Name the symbols of varying ints after the inputs, if the user gave no name."""
    varying = [node for node in inputs.nodes if isinstance(node.meta["val"], torch.SymInt)]
    for node, each in zip_longest(varying, ints, fillvalue=None):
        assert node is not None
        value: Any = node.meta["val"]
        symbol = str(value.node.expr)
        given = "" if each is None else each.name
        name_int(names, symbol, inputs.names[node.name], given)


def _name_by_place(names: dict[str, str], inputs: ProgramInputs) -> None:
    """Name all other symbols after the first dimension in which they occur."""
    sizes = [
        (inputs.names[node.name], axis, size.node.expr)
        for node in inputs.nodes
        for axis, size in enumerate(getattr(node.meta["val"], "shape", ()))
        if isinstance(size, torch.SymInt)
    ]
    name_by_place(names, sizes)


def of_ranges(
    lowered: Lowered | Survey,
    inputs: ProgramInputs,
    axes: Sequence[Axis],
    names: Mapping[str, str],
) -> list[Note]:
    """Return notes on sizes of which the plan accepts fewer than the user requested.

    Parameters
    ----------
    lowered : Lowered or Survey
        The result of lowering, with all inputs of the program.
    inputs : ProgramInputs
    axes : sequence of Axis
    names : mapping of str to str
        torch's symbol -> what it is called.
    """
    graph = lowered.graph
    env = inputs.shape_env
    notes: dict[str, Note] = {}
    for axis in axes:
        size = axis.held_by(graph)
        captured = axis.captured_by(inputs)
        if (
            not axis.varies
            or not isinstance(captured, torch.SymInt)
            or captured.node.expr.is_number
        ):
            continue  # settle() reported what torch fixed
        expr = captured.node.expr
        if is_static(size):  # a guard accepts one size alone
            (symbol, *_) = expr.free_symbols
            lines = lines_that_bound(env, symbol, (axis.size - 1, axis.size + 1))
            notes.setdefault(axis.where, _note_of_fixed(axis, "; ".join(lines[:1])))
            continue
        known = linear(size) if len(expr.free_symbols) == 1 else None
        root = getattr(axis.dim, "root", None)  # of a Dim computed from another
        if axis.required:
            is_other = known is None
        else:
            is_other = not expr.is_symbol or names[str(expr)] != (axis.name or names[str(expr)])
        if known is None or is_other:
            if axis.name and not axis.required:
                text = f"{axis.where} was to vary as {axis.name!r}, but the model makes it {size}"
                notes.setdefault(axis.where, Note("shape", f"{text}; give it that name"))
            continue
        name, factor, addend = known
        own = (1, 0) if root is None else (factor, addend)  # the user's request
        asked = _asked(axis.dim if root is None else root)
        got = graph.sizes[name]
        ends = _ends(known if root is None else (name, 1, 0), got)
        in_steps = factor != own[0]
        limited = not is_static(got[1])
        if not in_steps and not limited and asked[0] >= ends[0] and asked[1] <= ends[1]:
            continue
        (symbol,) = expr.free_symbols
        told = told_range(env, symbol, known, got)
        wanted = limits(*own, *asked) if asked != _ANY else ""
        text = f"{axis.where} ({size}) {f'was to vary {wanted}, but ' if wanted else ''}{told}"
        if not axis.required:
            text += size_advice(told) or "; an example of another size may allow more"
        notes.setdefault(name, Note("shape", text))
    ways = decisions(env, lowered.symbols, graph.sizes, graph.examples)
    return [*notes.values(), *_of_ints(lowered, inputs), *map(_note_of_decision, ways)]


#: The requested range without a user's range: dims of 0 and 1 may be special cases.
_ANY = (1, UNBOUNDED)


def _asked(dim: Any) -> tuple[int, int]:
    """Return the range that a Dim or a hint requests; a minimum of 0 counts as none."""
    least, most = getattr(dim, "min", None), getattr(dim, "max", None)
    # int_oo, of a Dim without an end, is larger than every number
    return max(int(least or 0), 1), UNBOUNDED if most is None else int(min(most, UNBOUNDED))


def _ends(known: tuple[str, int, int], ends: tuple[int, int]) -> tuple[int, int]:
    """Return the smallest and the largest value of an expression."""
    _, factor, addend = known
    least, most = ends[0], bounds(ends[1])[1]
    return factor * least + addend, UNBOUNDED if most >= UNBOUNDED else factor * most + addend


def _of_ints(lowered: Lowered | Survey, inputs: ProgramInputs) -> list[Note]:
    """Return notes on int arguments of which the plan does not accept the smallest values.

    The largest value follows from the tensors whose size the int is.
    """
    graph, env = lowered.graph, inputs.shape_env
    notes = []
    for node, name in zip(inputs.nodes, graph.inputs, strict=True):
        value = node.meta["val"]
        known = linear(lowered.symbols.get(value.node.expr, 0)) if _is_symbol(value) else None
        if known is None or _ends(known, graph.sizes[known[0]])[0] <= 0:
            continue
        told = told_range(env, value.node.expr, known, graph.sizes[known[0]])
        notes.append(Note("shape", f"the int {name!r} was to vary from 0, but {told}"))
    return notes


def _is_symbol(value: Any) -> bool:
    return isinstance(value, torch.SymInt) and bool(value.node.expr.is_symbol)


def told_range(
    env: ShapeEnv | None,
    symbol: sympy.Symbol,
    known: tuple[str, int, int],
    ends: tuple[int, int],
) -> str:
    """Describe the sizes that a dimension accepts, and the lines of the user's model that say so.

    Parameters
    ----------
    env : ShapeEnv
    symbol : sympy.Symbol
        torch's symbol of its size.
    known : (str, int, int)
        Its variable, factor and addend in the plan.
    ends : tuple of int
        The smallest and the largest value of the variable; the latter may be an expression.
    """
    _, factor, addend = known
    least, most = (factor * end + addend for end in (ends[0], bounds(ends[1])[1]))
    beyond = {least - 1, most + 1} if factor == 1 else {least - 1, least + 1, most + 1}
    by_others = not is_static(ends[1])
    lines = lines_that_bound(env, symbol, [n for n in beyond if n > 0], by_others=by_others)
    why = f", because of {'; '.join(lines[:3])}" if lines else ""
    return f"varies only {limits(factor, addend, *ends)}{why}"


def check_axes(dynamic_axes: Mapping[str, Any], plan: Plan) -> None:
    """Check that each name in ``dynamic_axes`` is one of an input, a state or an output.

    Raises
    ------
    ExportError
        If one is not; the message names it.
    """
    for name in dynamic_axes:
        if name not in (*plan.reads, *plan.outputs):
            states = f", states ({', '.join(plan.states)})" if plan.states else ""
            raise ExportError(
                f"dynamic_axes: expected names of inputs ({', '.join(plan.inputs)}){states} or "
                f"outputs ({', '.join(plan.outputs)}), got {name!r}"
            )


def check_equal(axes: Sequence[Axis]) -> None:
    """Check that dimensions of one name can be one size.

    Raises
    ------
    ExportError
        Naming two that are not.
    """
    first: dict[str, Axis] = {}
    for axis in axes:
        if not axis.name or hasattr(axis.dim, "root"):  # a derived size is another one
            continue
        other = first.setdefault(axis.name, axis)
        if other.size != axis.size:
            raise ExportError(
                f"{other.where} and {axis.where} are both called {axis.name!r}: expected equal "
                f"sizes in the example, got {other.size} and {axis.size}"
            )


def limits(factor: int, addend: int, low: int, high: int) -> str:
    """Describe the sizes ``factor * v + addend`` for ``v`` from low to high."""
    least, most = factor * low + addend, factor * high + addend
    steps = f" in steps of {factor}" if factor > 1 else ""
    return (
        f"from {least} on{steps}"
        if is_static(high) and high >= UNBOUNDED
        else f"from {least} to {most}{steps}"
    )


def _axis(tensor: int | None, name: str, source: str, x: torch.Tensor, axis: Any, dim: Any) -> Axis:
    """Return the Axis for an entry of a user's shapes; raise ExportError if it is invalid."""
    where = f"dynamic_shapes of {'state' if tensor is None else 'input'} {name!r}"
    if type(axis) is not int or not 0 <= axis < x.dim():
        raise ExportError(f"{where}: expected axes of 0 to {x.dim() - 1}, got {axis!r}")
    called = dim if isinstance(dim, str) else getattr(dim, "__name__", "")
    if isinstance(dim, str):
        dim = Dim.AUTO
    elif not isinstance(dim, Dim | _DimHint | int):
        raise ExportError(
            f"{where}: expected a string, a torch.export.Dim or an int for axis {axis}, got {dim!r}"
        )
    root = getattr(dim, "root", None)  # of a Dim computed from another
    if root is not None:
        called = root.__name__
    if not is_name(called or "n"):
        raise ExportError(f"{where}: expected a name of letters, digits and _, got {called!r}")
    required = isinstance(dim, Dim) or getattr(dim, "type", None) == _DimHintType.DYNAMIC
    return Axis(
        tensor, axis, name, f"{source}.size()[{axis}]", x.shape[axis], called, dim, required
    )


def _note_of_fixed(axis: Axis, line: str) -> Note:
    name = f" as {axis.name!r}" if axis.name else ""
    if line:
        why = f" at {line}"
        advice = size_advice(line) or "; write that line so that it holds for any size"
    elif axis.size in (0, 1):
        why, advice = "", "; try an example in which it is 2 or more"
    else:
        why, advice = "", ""
    text = f"{axis.where} was to vary{name}, but the model fixes it to {axis.size}{why}"
    if axis.required:
        raise FixedSizeError(f"{text}: expected a size that varies, got {axis.size}{advice}")
    return Note("shape", text + advice)


def _note_of_decision(way: TakenBranch) -> Note:
    sizes = ", ".join(f"{name} = {value}" for name, value in way.sizes.items())
    return Note(
        "branch",
        f"the module branches on a size at {way.line}; the plan always takes the branch of the "
        f"example, where {way.condition} holds, and may be wrong for other sizes, such as {sizes}; "
        "give the sizes ranges in which the condition holds, or export the other branch as a "
        "plan of its own",
    )


def _spell(path: Any) -> str:
    return f"inputs{keystr(path)}"
