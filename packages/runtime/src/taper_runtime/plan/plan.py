"""Define the plan as data: nodes in execution order, tensors, and their places in memory."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from taper_runtime.base.buffers import lazy_zeros
from taper_runtime.base.dtypes import COMPLEX, DTYPES
from taper_runtime.base.errors import InputError
from taper_runtime.base.loading import watched
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import is_static
from taper_runtime.base.text import is_one_of
from taper_runtime.formats import PLAIN
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import Shape, Signature, TensorType, is_contiguous

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from taper_runtime.base.loading import FilePath
    from taper_runtime.plan.recipes import RecipeStep
    from taper_runtime.plan.replaceable import WeightSpec
    from taper_runtime.plan.values import Value

#: The roles of a tensor. A state, a buffer that the module writes to, lives across runs.
ROLES = ("input", "output", "constant", "state", "intermediate")

#: The roles of tensors that entries share and whose values are in the file.
STORED = ("constant", "state")

_NOTHING: Mapping[str, Any] = MappingProxyType({})

#: Fields that are lists and dicts in each other.
_PLAIN_DATA = frozenset({"metadata", "input_tree", "output_tree"})


def _refuse(*_: object, **__: object) -> NoReturn:
    raise TypeError("a plan cannot be changed; plan._replace makes another")


class ReadOnly(dict[str, Any]):
    """A dict that cannot be changed, because sessions rely on the plan."""

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadOnly, (dict(self),)


class ReadOnlyList(list[Any]):
    """A list that cannot be changed."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadOnlyList, (list(self),)


def frozen(data: Any) -> Any:
    """Return plain data whose lists and dicts, inner ones too, cannot be changed."""
    if type(data) is dict:
        return ReadOnly({key: frozen(item) for key, item in watched(data.items())})
    if type(data) is list:
        return ReadOnlyList(map(frozen, watched(data)))
    return tuple(map(frozen, data)) if type(data) is tuple else data


class TensorSpec(NamedTuple):
    """Name, type and role of one tensor; its dims may be size expressions.

    Attributes
    ----------
    is_complex : bool
        Whether users see an input, an output or a state as complex numbers. Nodes see real and
        imaginary parts along a last axis of 2.
    """

    name: str
    dtype: str
    shape: Shape
    role: str
    format: str = PLAIN
    is_complex: bool = False

    @property
    def type(self) -> TensorType:
        """Return the dtype, shape and format."""
        return TensorType(self.dtype, self.shape, self.format)

    @property
    def seen(self) -> TensorType:
        """Return the type that users see: a complex type if ``is_complex``."""
        if not self.is_complex:
            return self.type
        return TensorType(COMPLEX[self.dtype], self.shape[:-1])

    @property
    def storage(self) -> TensorType:
        """Return the plain type of the array that stores the tensor."""
        return self.type.storage

    @property
    def nbytes(self) -> int:
        """Return the size in bytes of the contiguous tensor as it is stored."""
        return self.type.nbytes


def is_converted(spec: TensorSpec | WeightSpec) -> bool:
    """Return whether the arrays of users differ from those of the plan (``session.ends``)."""
    return spec.is_complex or spec.dtype == "bfloat16"


class Placement(NamedTuple):
    """The place of a tensor in memory.

    A tensor is its own root (``root`` is its name) or a slice of another tensor's memory. Roots
    with role input, output, constant or state lie in external memory, which the caller or the file
    owns. Other roots lie in the arena, which an executor lays out when the sizes are known.

    Attributes
    ----------
    root : str
        The tensor that owns the memory.
    offset : int
        Bytes from the start of the root's memory: 0 for a root; may be a size expression.
    strides : tuple of int
        Strides in elements of the array that stores the tensor; may be size expressions.
    """

    root: str
    offset: int
    strides: Shape

    def is_contiguous(self, shape: Shape) -> bool:
        """Return whether the elements of ``shape`` lie in row-major order without gaps."""
        return is_contiguous(shape, self.strides)


class PlanNode(NamedTuple):
    """One step: an op from the registry over named tensors.

    Attributes
    ----------
    inputs : tuple of str or None
        The inputs; None for an absent optional input.
    outputs : tuple of str
        The outputs, at least one.
    attrs : mapping
        Plain data and, if the op allows it, size expressions. Attrs equal to the op's defaults are
        left out.
    source : str
        The user's source line; empty if unknown.
    blocks : tuple of PlanBlock
        The blocks that an op of control flow runs.
    targets : tuple of str
        The ATen ops that it came from, such as ``aten.relu.default``, as the exported program
        calls them; may be empty.
    arguments : str or None
        If the node computes the whole call of its only target, with the call's tensors in order as
        inputs: the JSON of the call's other arguments by name. Else None.
    """

    op: str
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = _NOTHING
    source: str = ""
    blocks: tuple[PlanBlock, ...] = ()
    targets: tuple[str, ...] = ()
    arguments: str | None = None

    @property
    def output(self) -> str:
        """Return the first output, which for most ops is the only one."""
        return self.outputs[0]

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the inputs that are present."""
        if None not in self.inputs:
            return self.inputs  # type: ignore[return-value]  # of str then
        return tuple([name for name in self.inputs if name is not None])


class PlanBlock(NamedTuple):
    """The nodes that a node of control flow runs, any number of times.

    A block reads only its own inputs and the plan's constants. Names of tensors are unique in a
    plan, including all its blocks.

    Attributes
    ----------
    nodes : tuple of PlanNode
        In execution order.
    tensors : mapping of str to TensorSpec
        The tensors, of role input, output or intermediate.
    placements : mapping of str to Placement
        The placement of every tensor of the block. Inputs are row-major, in memory of their own. An
        output may lie in the memory of the input of the same carry; then the block writes there.
    inputs, outputs : tuple of str
        The names, without duplicates.
    """

    nodes: tuple[PlanNode, ...]
    tensors: Mapping[str, TensorSpec]
    placements: Mapping[str, Placement]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def signature(self) -> Signature:
        """Return the types of inputs and outputs."""
        ends = (self.inputs, self.outputs)
        inputs, outputs = (tuple(self.tensors[name].type for name in end) for end in ends)
        return Signature(inputs, outputs)


class Entry(NamedTuple):
    """An additional function of a plan, over the same weights and states.

    Attributes are those of :class:`Plan`. Each entry has its own names of tensors. A name that an
    entry reads and does not define is one of the plan's constants or states.
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

    def as_block(self) -> PlanBlock:
        """Return the part of an entry that blocks also have."""
        return PlanBlock(self.nodes, self.tensors, self.placements, self.inputs, self.outputs)


class Plan(NamedTuple):
    """A model ready to run: frozen plain data, nothing executable.

    A plan may have several entries, which are functions over the same constants and states. Its own
    nodes, tensors, inputs and outputs are those of the default entry.

    Attributes
    ----------
    nodes : tuple of PlanNode
        The nodes in execution order. Some are not executed, because the placement of the output is
        the result: a node whose op has a view rule and whose output shares its first input's root,
        or a node whose op has a parts rule and whose output begins where its first input does.
    tensors : mapping of str to TensorSpec
    placements : mapping of str to Placement
        The placement of every tensor.
    inputs, outputs : tuple of str
        The names in the order of the module's flattened arguments and results. An output is a
        tensor of role output; a name may occur twice.
    constants : mapping of str to numpy.ndarray
        One C-contiguous array per tensor of role constant, in its storage format, and of role
        state, its initial value. After a load these are views of the mapped file. A state without
        an array starts as zeros; a constant without one is computed from weights (``derived``).
    samples : mapping of str to numpy.ndarray
        The example inputs of the export, by input name; may be empty.
    input_tree, output_tree : plain data
        The structure of inputs and outputs in the module's signature; see
        :mod:`taper_runtime.plan.trees`.
    metadata : mapping
        The export report and other data to show; no run reads them.
    sizes : mapping of str to tuple of int
        The size variables with their smallest and largest values; the largest may be an expression
        in earlier variables.
    origins : mapping of str to tuple of str and int
        For each size variable that is not an input's dim, the int64 tensor that holds its value,
        and the row-major index of the element. Nodes that use the variable come after that tensor.
    states : mapping of str to str
        For each tensor of role state, the tensor with its value after a run: one of role output, or
        one in the state's own memory, which is then written in place, or the state itself, which is
        then only read.
    default : str
        The name of the default entry.
    entries : mapping of str to Entry
        The other entries.
    weights : mapping of str to WeightSpec
        The module's parameters and buffers by their first names, if a session may replace them, and
        further constants that recipes need.
    derived : mapping of str to tuple of RecipeStep
        The recipes of all constants that depend on weights, by the constants' names.
    originals : mapping of str to numpy.ndarray
        The values of the weights that recipes read and that are not constants themselves.
    provenance : mapping of str to sequence of RecipeStep
        For constants that are not ``derived``, how the export computed them, as far as it is known;
        no run reads it. When the plan comes from a file it is parsed on access, which may raise
        PlanFormatError.
    assets : mapping of str to numpy.ndarray
        Files that belong to the model, such as its tokenizer, by their names: uint8 [bytes]. No run
        reads them. After a load these are views of the mapped file; ``tobytes()`` copies one.
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
    assets: Mapping[str, np.ndarray] = _NOTHING

    @property
    def entry_names(self) -> tuple[str, ...]:
        """Return the names of all entries, the default one first."""
        return (self.default, *self.entries)

    def entry(self, name: str | None = None) -> Plan:
        """Return a plan with one entry only, which is its default.

        Parameters
        ----------
        name : str, optional
            The entry's name; by default the default entry.

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
        """Return the fields about weights of a plan with these constants."""
        if not self.weights:
            return {}
        from taper_runtime.plan.replaceable import weights_of

        return weights_of(self, constants)

    def first_value(self, state: str) -> np.ndarray:
        """Return a new array with the value of a state before the first run.

        It is zeros if the plan has no data; these have no memory until they are written. Along a
        dim that varies it is one row, that of every sequence.
        """
        if state in self.constants:
            return np.array(self.constants[state])
        dtype, shape, _ = self.tensors[state].storage
        sizes = [size if is_static(size) else 1 for size in shape]
        return lazy_zeros(sizes, DTYPES[dtype].storage)

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the tensors that a run reads: the inputs, then the states."""
        return (*self.inputs, *self.states)

    @property
    def writes(self) -> tuple[str, ...]:
        """Return the tensors that a run writes: outputs, then next states not written in place."""
        return (
            *self.outputs,
            *(self.states[name] for name in self.states if not self.is_in_place(name)),
        )

    def is_in_place(self, state: str) -> bool:
        """Return whether a state's next value lies in its own memory."""
        return self.placements[self.states[state]].root == state

    @property
    def generator(self) -> str | None:
        """Return the state of the random generator; None if the plan draws no random numbers."""
        first = (_drawn_from(node) for node in self.nodes)
        return next((name for name in first if name in self.states), None)

    @property
    def recipes(self) -> dict[str, Sequence[RecipeStep]]:
        """Return, for each constant, the parameters and ops that it was computed from.

        Recipes are known as far as the export recorded them; see :mod:`taper_runtime.plan.recipes`.
        """
        return {**self.derived, **self.provenance}

    def made_from(self, parameter: str) -> tuple[str, ...]:
        """Return the names of the constants that were computed from a parameter or buffer.

        Parameters
        ----------
        parameter : str
            Its name in the module's state dict.
        """
        from taper_runtime.plan.recipes import parameter_names

        tied = (spec.name for spec in self.weights.values() if parameter in spec.aliases)
        own = next(tied, parameter)
        made = (
            name
            for recipes in (self.provenance, self.derived)
            for name, recipe in recipes.items()
            if own in parameter_names(recipe)
        )
        return tuple(dict.fromkeys(made))

    def is_executed(self, node: PlanNode) -> bool:
        """Return whether a run computes this node; False if its placement is the result."""
        op, output = REGISTRY[node.op], node.output
        if op.view is None and op.parts is None:
            return True
        first = node.reads[0]
        if self.placements[output].root != self.placements[first].root:
            return True
        return op.view is None and self.placements[output].offset != self.placements[first].offset

    def as_block(self) -> PlanBlock:
        """Return the part of a plan that blocks also have."""
        return PlanBlock(self.nodes, self.tensors, self.placements, self.inputs, self.outputs)

    def body(self, block: PlanBlock) -> Plan:
        """Return a block of this plan as a plan, with the constants that it reads."""
        constants = self.constants_inside(block)
        return Plan(
            nodes=block.nodes,
            tensors={**{name: self.tensors[name] for name in constants}, **block.tensors},
            placements={**{name: self.placements[name] for name in constants}, **block.placements},
            inputs=block.inputs,
            outputs=block.outputs,
            constants={name: self.constants[name] for name in constants if name in self.constants},
            sizes=self.sizes,
        )

    def constants_inside(self, block: PlanBlock) -> list[str]:
        """Return the names of the constants that a block, and its inner blocks, read."""
        return [
            name
            for name in dict.fromkeys(_names_read(block))
            if name in self.tensors and self.tensors[name].role == "constant"
        ]

    def read_only(self) -> Plan:
        """Return the plan with read-only mappings and lists, as loads and exports return it."""
        plan: Plan = _read_only(self)
        return plan

    def without_values(self) -> Plan:
        """Return the plan without the values of weights that a session may replace."""
        first = {name: self.constants[name] for name in self.states if name in self.constants}
        return self._replace(constants=first, originals=_NOTHING)

    def with_assets(self, assets: Mapping[str, bytes]) -> Plan:
        """Return the plan with these assets too; one of the same name is replaced.

        Parameters
        ----------
        assets : mapping of str to bytes
            Contents by plain names of files, such as ``"tokenizer.json"``.

        Raises
        ------
        InputError
            If a content is not bytes.
        PlanFormatError
            If a name is not a plain name of a file.
        """
        from taper_runtime.plan.validate import check_assets

        made = {name: _asset(name, content) for name, content in assets.items()}
        plan = self._replace(assets=ReadOnly({**self.assets, **made}))
        check_assets(plan)
        return plan

    def values(self) -> list[Value]:
        """Return the values of inputs, constants, states, nodes and sizes, each with a number."""
        from taper_runtime.plan.values import list_values

        return list_values(self)

    # reports.plan_methods implements these two: they need packages above this one.

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


def _asset(name: str, content: object) -> np.ndarray:
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise InputError(f"assets[{name!r}]: expected bytes, got {type(content).__name__}")
    return np.frombuffer(bytes(content), "u1")


def _read_only(item: Any) -> Any:
    """Return a named tuple of a plan with read-only mappings and lists, including inner ones."""
    if type(item) is PlanNode and type(item.attrs) is ReadOnly and not item.blocks:
        return item  # loads make most of them read-only already
    changed: dict[str, Any] = {}
    for name, value in zip(item._fields, item, strict=True):
        if name in ("nodes", "blocks") and value:
            changed[name] = tuple(map(_read_only, value))
        elif name == "entries":
            changed[name] = ReadOnly({n: _read_only(each) for n, each in value.items()})
        elif name in _PLAIN_DATA:
            changed[name] = frozen(value)
        elif name == "derived" and value:
            recipes = {n: tuple(map(_read_only, recipe)) for n, recipe in value.items()}
            changed[name] = ReadOnly(recipes)
        elif name == "attrs":
            tuples = {n: tuple(x) if type(x) is list else x for n, x in value.items()}
            changed[name] = ReadOnly(tuples)
        elif type(value) is dict:
            changed[name] = ReadOnly(value)
    return item._replace(**changed) if changed else item


def _names_read(block: PlanBlock) -> Iterator[str]:
    """Yield the names that the nodes of a block, and of inner blocks, read."""
    for node in block.nodes:
        yield from (name for name in node.reads if type(name) is str)
        for inner in node.blocks:
            yield from _names_read(inner)


def _drawn_from(node: PlanNode) -> str | None:
    """Return the generator's state if ``node``, or a node it runs, draws; else None.

    It is the first input of blocks.
    """
    if node.op == "RANDOM":
        return node.reads[0]
    for block in node.blocks:
        if any(_drawn_from(inner) in block.inputs[:1] for inner in block.nodes):
            return node.reads[len(node.reads) - len(block.inputs)]
    return None
