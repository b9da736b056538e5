"""Hold a plan as data: nodes in execution order, tensors, and where each lies in memory."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from taper_runtime.base.dtypes import COMPLEX, DTYPES
from taper_runtime.base.errors import InputError
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import is_static
from taper_runtime.base.text import is_one_of
from taper_runtime.formats import PLAIN
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import Shape, Signature, TensorType, is_contiguous

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from taper_runtime.file.writer import FilePath
    from taper_runtime.plan.recipes import RecipeStep
    from taper_runtime.plan.replaceable import WeightSpec
    from taper_runtime.plan.values import Value

#: Roles of a tensor. A state lives across runs: a buffer that the module writes to.
ROLES = ("input", "output", "constant", "state", "intermediate")

#: Roles of the tensors that entries share, whose values the file has.
STORED = ("constant", "state")

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class ReadOnly(dict[str, Any]):
    """A dict that cannot be changed: runs rely on the plan."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a plan cannot be changed; plan._replace makes another")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadOnly, (dict(self),)


class TensorSpec(NamedTuple):
    """Name, type and role of one tensor; its dims may be size expressions.

    Attributes
    ----------
    is_complex : bool
        Whether users see an input, an output or a state as complex numbers, whose real and
        imaginary parts lie along its last axis, of 2. Nodes see those.
    """

    name: str
    dtype: str
    shape: Shape
    role: str
    format: str = PLAIN
    is_complex: bool = False

    @property
    def type(self) -> TensorType:
        """The dtype, shape and format."""
        return TensorType(self.dtype, self.shape, self.format)

    @property
    def seen(self) -> TensorType:
        """The type that users see: that of complex numbers where it holds such."""
        if not self.is_complex:
            return self.type
        return TensorType(COMPLEX[self.dtype], self.shape[:-1])

    @property
    def storage(self) -> TensorType:
        """The plain type of the array that stores it."""
        return self.type.storage

    @property
    def nbytes(self) -> int:
        """Bytes of the contiguous tensor as it is stored."""
        return self.type.nbytes


class Placement(NamedTuple):
    """Tell where a tensor lies.

    A tensor is its own root (``root`` is its name) or a slice of another tensor's memory. The
    memory of roots with role input, output, constant or state is external: it is the caller's or
    the file's. Other roots lie in the arena, which an executor lays out when it knows the sizes.

    Attributes
    ----------
    root : str
        The tensor that owns the memory.
    offset : int
        Bytes from the begin of the root's memory: 0 for a root; may be a size expression.
    strides : tuple of int
        Elements, of the array that stores the tensor; may be size expressions.
    """

    root: str
    offset: int
    strides: Shape

    def is_contiguous(self, shape: Shape) -> bool:
        """Whether the elements of ``shape`` lie row-major without gaps."""
        return is_contiguous(shape, self.strides)


class PlanNode(NamedTuple):
    """One step: an op from the registry over named tensors.

    Attributes
    ----------
    inputs : tuple of str or None
        None where an optional input is absent.
    outputs : tuple of str
        At least one.
    attrs : mapping
        Plain data and, where the op allows it, size expressions; attrs equal to the op's defaults
        are left out.
    source : str
        The user's source line, empty where unknown.
    blocks : tuple of Block
        What an op of control flow runs.
    targets : tuple of str
        The ATen ops that it came from, such as ``aten.relu.default``; may be empty.
    """

    op: str
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = _NOTHING
    source: str = ""
    blocks: tuple[Block, ...] = ()
    targets: tuple[str, ...] = ()

    @property
    def output(self) -> str:
        """The first output, the only one of most ops."""
        return self.outputs[0]

    @property
    def reads(self) -> tuple[str, ...]:
        """The inputs that are there."""
        if None not in self.inputs:
            return self.inputs  # type: ignore[return-value]  # of str then
        return tuple([name for name in self.inputs if name is not None])


class Block(NamedTuple):
    """Nodes that a node of control flow runs, any number of times.

    It reads its own inputs and the plan's constants alone. No name of a tensor stands in a plan, in
    its blocks, and in theirs, twice.

    Attributes
    ----------
    nodes : tuple of PlanNode
        In execution order.
    tensors : mapping of str to TensorSpec
        Of role input, output or intermediate.
    placements : mapping of str to Placement
        For every tensor of the block. Inputs are row-major, in memory of their own. An output may
        lie in the memory of the input that is the same carry: then the block writes there.
    inputs, outputs : tuple of str
        No name stands there twice.
    """

    nodes: tuple[PlanNode, ...]
    tensors: Mapping[str, TensorSpec]
    placements: Mapping[str, Placement]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def signature(self) -> Signature:
        """The types of inputs and outputs."""
        ends = (self.inputs, self.outputs)
        inputs, outputs = (tuple(self.tensors[name].type for name in end) for end in ends)
        return Signature(inputs, outputs)


class Entry(NamedTuple):
    """An additional function of a plan, over the same weights and states.

    Attributes are those of :class:`Plan`. Names of tensors stand for themselves in each entry: what
    an entry reads and has no tensor of its own for is one of the plan's constants or states.
    """

    nodes: tuple[PlanNode, ...]
    tensors: Mapping[str, TensorSpec]
    placements: Mapping[str, Placement]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    samples: Mapping[str, np.ndarray] = _NOTHING
    input_tree: Any = None
    output_tree: Any = None
    sizes: Mapping[str, tuple[int, int]] = _NOTHING
    states: Mapping[str, str] = _NOTHING
    origins: Mapping[str, tuple[str, int]] = _NOTHING

    def as_block(self) -> Block:
        """Return what an entry has in common with a block."""
        return Block(self.nodes, self.tensors, self.placements, self.inputs, self.outputs)


class Plan(NamedTuple):
    """A model ready to run: frozen plain data, nothing executable.

    A plan may have several entries, functions over the same constants and states. Its own nodes and
    what belongs to them are those of the default entry.

    Attributes
    ----------
    nodes : tuple of PlanNode
        In execution order. A node whose op has a view rule and whose output shares its first
        input's root, or whose op has a parts rule and whose output begins where its first input
        does, is not executed: the placement is its result.
    tensors : mapping of str to TensorSpec
    placements : mapping of str to Placement
        For every tensor.
    inputs, outputs : tuple of str
        In the order of the module's flattened arguments and results. An output is a tensor of role
        output; the same name may stand there twice.
    constants : mapping of str to numpy.ndarray
        One C-contiguous array per tensor of role constant, as its format stores it, and of role
        state: its first value (views of the mapped file after a load). A state without one begins
        as zeros; a constant without one is to be computed (``derived``).
    samples : mapping of str to numpy.ndarray
        Example inputs by input name, those the model was exported with; may be empty.
    input_tree, output_tree : plain data
        How the flat inputs and outputs nest in the module's signature; see
        :mod:`taper_runtime.plan.trees`.
    metadata : mapping
        The export report and what else a reader may show; never read to run.
    sizes : mapping of str to tuple of int
        The size variables, each with the least and the largest value it may take; the largest may
        be an expression in variables before it.
    origins : mapping of str to tuple of str and int
        Of each size variable that no input's dim gives: an int64 tensor that a node makes, and
        which of its elements, row-major, is the value. Nodes that have to do with it come later.
    states : mapping of str to str
        Each tensor of role state, and the tensor that is its value after a run: one of role output,
        or one in the state's own memory, which is then written in place.
    default : str
        The name of the default entry.
    entries : mapping of str to Entry
        The others.
    weights : mapping of str to WeightSpec
        The parameters and buffers of the module by their first names, where a session may replace
        them, and constants that recipes need besides.
    derived : mapping of str to tuple of RecipeStep
        By the names of constants, how each is computed from weights: all that a weight decides.
    originals : mapping of str to numpy.ndarray
        The values of the weights that recipes need and no constant is.
    provenance : mapping of str to sequence of RecipeStep
        By the names of constants, how the export made each that is not ``derived``, as far as it
        knows; never read to run. That of a file is parsed when it is asked for: PlanFormatError
        then, where it holds no recipes.
    """

    nodes: tuple[PlanNode, ...]
    tensors: Mapping[str, TensorSpec]
    placements: Mapping[str, Placement]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, np.ndarray]
    samples: Mapping[str, np.ndarray] = _NOTHING
    input_tree: Any = None
    output_tree: Any = None
    metadata: Mapping[str, Any] = _NOTHING
    sizes: Mapping[str, tuple[int, int]] = _NOTHING
    states: Mapping[str, str] = _NOTHING
    origins: Mapping[str, tuple[str, int]] = _NOTHING
    default: str = "forward"
    entries: Mapping[str, Entry] = _NOTHING
    weights: Mapping[str, WeightSpec] = _NOTHING
    derived: Mapping[str, tuple[RecipeStep, ...]] = _NOTHING
    originals: Mapping[str, np.ndarray] = _NOTHING
    provenance: Mapping[str, Sequence[RecipeStep]] = _NOTHING

    @property
    def entry_names(self) -> tuple[str, ...]:
        """The names of all entries, the default one first."""
        return (self.default, *self.entries)

    def entry(self, name: str | None = None) -> Plan:
        """Return the plan of one entry alone: it is the default one there.

        Parameters
        ----------
        name : str, optional
            The default entry unless given.

        Raises
        ------
        InputError
            If there is no such entry.
        """
        name = self.default if name is None else name
        if not is_one_of(name, self.entry_names):
            raise InputError(f"unknown entry {name!r}; expected one of {[*self.entry_names]}")
        if not self.entries:
            return self
        entry: Entry | Plan = self.entries.get(name, self)
        own = {n: spec for n, spec in entry.tensors.items() if spec.role not in STORED}
        stored = entry.tensors.keys() - own.keys()
        read = {*_names_read(entry.as_block()), *entry.states} - own.keys()
        shared = {n: spec for n, spec in self.tensors.items() if n in read and spec.role in STORED}
        placements = {
            **{n: self.placements[n] for n in shared},
            **{n: place for n, place in entry.placements.items() if n not in stored},
        }
        return self._replace(
            **{
                **{field: getattr(entry, field) for field in Entry._fields},
                "tensors": {**shared, **own},
                "placements": placements,
            },
            constants={n: self.constants[n] for n in shared if n in self.constants},
            default=name,
            entries=_NOTHING,
            **self._weights_of(shared),
        )

    def _weights_of(self, constants: Collection[str]) -> dict[str, Any]:
        """Return what a plan of these constants has of the weights."""
        if not self.weights:
            return {}
        from taper_runtime.plan.replaceable import weights_of

        return weights_of(self, constants)

    def first_value(self, state: str, rows: int = 1) -> np.ndarray:
        """Return the value of a state before the first run: zeros where the plan has no data.

        Parameters
        ----------
        state : str
        rows : int
            The size of its dim that varies, if it has one.
        """
        if state in self.constants:
            return self.constants[state]
        dtype, shape, _ = self.tensors[state].storage
        return np.zeros(
            [size if is_static(size) else rows for size in shape], DTYPES[dtype].storage
        )

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that a run reads: the inputs, then the states."""
        return (*self.inputs, *self.states)

    @property
    def writes(self) -> tuple[str, ...]:
        """The tensors that a run writes: outputs, then next states not written in place."""
        return (
            *self.outputs,
            *(self.states[name] for name in self.states if not self.is_in_place(name)),
        )

    def is_in_place(self, state: str) -> bool:
        """Whether a state's next value lies in its own memory."""
        return self.placements[self.states[state]].root == state

    @property
    def generator(self) -> str | None:
        """The state of the random generator; None if the plan draws no random numbers."""
        first = (_drawn_from(node) for node in self.nodes)
        return next((name for name in first if name in self.states), None)

    @property
    def recipes(self) -> dict[str, Sequence[RecipeStep]]:
        """Map each constant to the parameters and ops that it was made from.

        By the constant's name, as far as the export knew; see :mod:`taper_runtime.plan.recipes`.
        """
        return {**self.provenance, **self.derived}

    def made_from(self, parameter: str) -> tuple[str, ...]:
        """Return the names of the constants that a parameter or buffer went into.

        Parameters
        ----------
        parameter : str
            Its name in the module's state dict.
        """
        from taper_runtime.plan.recipes import parameter_names

        tied = (spec.name for spec in self.weights.values() if parameter in spec.aliases)
        own = next(tied, parameter)
        return tuple(
            name for name, recipe in self.recipes.items() if own in parameter_names(recipe)
        )

    def is_executed(self, node: PlanNode) -> bool:
        """Whether a run computes this node; False where it is a view of its input or its inputs."""
        op, output = REGISTRY[node.op], node.output
        if op.view is None and op.parts is None:
            return True
        first = node.reads[0]
        if self.placements[output].root != self.placements[first].root:
            return True
        return op.view is None and self.placements[output].offset != self.placements[first].offset

    def as_block(self) -> Block:
        """Return what a plan has in common with a block."""
        return Block(self.nodes, self.tensors, self.placements, self.inputs, self.outputs)

    def body(self, block: Block) -> Plan:
        """Return a block of this plan as a plan of its own, with the constants that it reads."""
        constants = [
            name
            for name in dict.fromkeys(_names_read(block))
            if name in self.tensors and self.tensors[name].role == "constant"
        ]
        return Plan(
            nodes=block.nodes,
            tensors={**{name: self.tensors[name] for name in constants}, **block.tensors},
            placements={**{name: self.placements[name] for name in constants}, **block.placements},
            inputs=block.inputs,
            outputs=block.outputs,
            constants={name: self.constants[name] for name in constants if name in self.constants},
            sizes=self.sizes,
        )

    def read_only(self) -> Plan:
        """Return the plan with mappings that cannot be changed, as a load and an export give it.

        Those of metadata, trees and entries' trees inside are as they were.
        """
        plan: Plan = _read_only(self)
        return plan

    def without_values(self) -> Plan:
        """Return the plan without the values of weights, which a session may replace."""
        first = {name: self.constants[name] for name in self.states if name in self.constants}
        return self._replace(constants=first, originals=_NOTHING)

    def values(self) -> list[Value]:
        """Return what inputs, constants, states, nodes and sizes hold, each with a number."""
        from taper_runtime.plan.values import list_values

        return list_values(self)

    # reports.plan_methods attaches these two: they need the rooms above.

    def fingerprint(self) -> str:
        """Return a SHA-256, in hexadecimal, of what the plan computes."""
        raise NotImplementedError

    def save(
        self,
        path: FilePath,
        *,
        name: str = "model",
        append: bool = False,
        folded: bool | None = None,
    ) -> None:
        """Write the plan to ``path`` as a ``.taper`` file, atomically."""
        raise NotImplementedError


def _read_only(item: Any) -> Any:
    """Return a named tuple of a plan with mappings that cannot be changed, in those inside too."""
    if type(item) is PlanNode and type(item.attrs) is ReadOnly and not item.blocks:
        return item  # as a load makes most of them
    changed: dict[str, Any] = {}
    for name, value in zip(item._fields, item, strict=True):
        if name in ("nodes", "blocks") and value:
            changed[name] = tuple(map(_read_only, value))
        elif name == "entries":
            changed[name] = ReadOnly({n: _read_only(each) for n, each in value.items()})
        elif type(value) is dict:
            changed[name] = ReadOnly(value)
    return item._replace(**changed) if changed else item


def _names_read(block: Block) -> Iterator[str]:
    """Yield what the nodes of a block, and of the blocks in it, read."""
    for node in block.nodes:
        yield from (name for name in node.reads if type(name) is str)
        for inner in node.blocks:
            yield from _names_read(inner)


def _drawn_from(node: PlanNode) -> str | None:
    """Return what holds the generator where ``node`` or what it runs draws; None if it does not.

    It is the first that blocks are given.
    """
    if node.op == "RANDOM":
        return node.reads[0]
    for block in node.blocks:
        if any(_drawn_from(inner) in block.inputs[:1] for inner in block.nodes):
            return node.reads[len(node.reads) - len(block.inputs)]
    return None
