"""Hold a model as nodes over named tensors, which rewrites change."""

from __future__ import annotations

from copy import copy
from functools import wraps
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from taper_frontend.compiler.graph.constants import Constant, Literal, literal, visible
from taper_frontend.compiler.graph.listener import Listener
from taper_frontend.compiler.graph.node import ABSENT, Node, Source
from taper_frontend.compiler.graph.state import State
from taper_runtime.errors import InternalError, OpError
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import Signature, TensorType
from taper_runtime.plan.checks import METADATA_NAME, SAMPLE_PREFIX
from taper_runtime.plan.plan import TensorSpec
from taper_runtime.sizes import Size, bounds, size_at, variables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


def _changes(
    method: Callable[Concatenate[Graph, _Args], _Result],
) -> Callable[Concatenate[Graph, _Args], _Result]:
    """Have a method that changes a graph refuse a frozen one."""

    @wraps(method)
    def checked(graph: Graph, /, *args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
        if graph.is_frozen:
            raise InternalError(f"{method.__name__}: the graph is frozen, as its passes have run")
        return method(graph, *args, **kwargs)

    return checked


class Graph:
    """Nodes connected by named tensors; inputs, states and constants are tensors, not nodes.

    Every tensor is an input, a state, a constant, or an output of exactly one node. All changes go
    through methods, which keep the producer and consumer indices current and forget the cached
    order.

    A graph inside a node, one of its blocks, has no states, and the size variables of the graph
    around it. What changes in it is told to that graph's listener as a change of the node.

    Attributes
    ----------
    sizes : dict of str to tuple of int
        The size variables, each with its least and its largest value. What the graph says of sizes
        holds from 1 on; the planner finds whether it does for 0.
    examples : dict of str to int
        A typical value of each, for what has to be weighed.
    origins : dict of str to tuple of str and int
        For each size variable that no input's dim gives: an int64 tensor that a node makes, and
        which of its elements, in row-major order, is the value. That tensor is used as an output
        is.
    inputs : list of str
    outputs : list of str
        A name may stand there twice.
    tensors : dict of str to TensorSpec
        Type and role (input, state, constant or intermediate) of every tensor.
    constants : dict of str to Constant
        What the tensors of role constant are: parameters, literals, or recipes over such.
    states : list of State
        What lives across runs.
    listener : Listener
        Hears of every change; :class:`taper_frontend.compiler.trace.Recorder` is one.
    is_frozen : bool
        Whether changing it raises :class:`InternalError`; see :meth:`freeze`.
    """

    def __init__(
        self,
        sizes: Mapping[str, tuple[int, int]] | None = None,
        examples: Mapping[str, int] | None = None,
    ) -> None:
        self.sizes = dict(sizes or {})
        self.examples = dict(examples or {})
        self.origins: dict[str, tuple[str, int]] = {}
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.tensors: dict[str, TensorSpec] = {}
        self.constants: dict[str, Constant] = {}
        self.states: list[State] = []
        self.listener = Listener()
        self.is_frozen = False
        self._nodes: dict[str, Node] = {}  # by their first output
        self._producers: dict[str, Node] = {}  # by each of their outputs
        # tensor -> first outputs of the nodes that read it (a dict as an ordered set)
        self._consumers: dict[str, dict[str, None]] = {}
        self._order: tuple[Node, ...] | None = None
        self._next_suffix: dict[str, int] = {}

    # -- building ---------------------------------------------------------------------------------

    def new_block(self) -> Graph:
        """Return an empty graph for a node of this one: it has the same size variables."""
        block = Graph()
        block.sizes, block.examples = self.sizes, self.examples
        return block

    def add_input(self, name: str, dtype: str, shape: Sequence[int]) -> str:
        """Add a graph input.

        Returns
        -------
        str
            Its name: ``name``, with a suffix where that was taken.
        """
        name = self._add_tensor(name, TensorType(dtype, tuple(shape)), "input")
        self.inputs.append(name)
        return name

    def add_state(self, name: str, first: np.ndarray, dtype: str | None = None) -> str:
        """Add a state, whose value stays what it is until :meth:`set_next` says otherwise.

        Parameters
        ----------
        name : str
            Wanted name.
        first : numpy.ndarray
            The value before the first run.
        dtype : str, optional
            As :meth:`add_constant` takes it.

        Returns
        -------
        str
            Its name: ``name``, with a suffix where that was taken.
        """
        stored = _literal(f"state {name!r}", first, dtype)
        name = self._add_tensor(name, stored.type, "state")
        self.states.append(State(name, stored.array, name))
        return name

    @_changes
    def set_next(self, name: str, tensor: str) -> None:
        """Make ``tensor`` the value of the state ``name`` after a run."""
        self._check_same_type(name, tensor)
        state = next(state for state in self.states if state.name == name)
        state.next = tensor

    def add_constant(
        self, name: str, value: Constant | np.ndarray, dtype: str | None = None
    ) -> str:
        """Add a constant.

        Parameters
        ----------
        name : str
            Wanted name.
        value : Constant or numpy.ndarray
            An array is a literal: see :func:`taper_frontend.compiler.graph.constants.literal`.
        dtype : str, optional
            Of an array, where numpy has no such type.

        Returns
        -------
        str
            Its name: ``name``, with a suffix where that was taken.

        Raises
        ------
        OpError
            If the array's dtype is not one of Taper's, or not the storage type of ``dtype``.
        """
        if not isinstance(value, Constant):
            value = _literal(f"constant {name!r}", value, dtype)
        name = self._add_tensor(name, value.type, "constant")
        self.constants[name] = value
        return name

    def add_node(
        self,
        op: str,
        inputs: Sequence[str | None],
        attrs: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        source: Source | str = "",
    ) -> str:
        """Add a node of one output; the op's definition infers its type.

        Parameters
        ----------
        op : str
        inputs : sequence of str or None
            Existing tensors; None for an optional one that is absent.
        attrs : mapping, optional
        name : str, optional
            Wanted name of the output; the op's in lower case if not given.
        source : Source or str, optional
            The user's source line, if it is a string.

        Returns
        -------
        str
            The name of the output: as wanted, with a suffix where that was taken.

        Raises
        ------
        OpError
            If there is no such op, it does not allow these inputs or attrs, or it has several
            outputs.
        """
        return self._add_node(op, inputs, attrs, (), name, source, one=True)[0]

    def add_multi_output(
        self,
        op: str,
        inputs: Sequence[str | None],
        attrs: Mapping[str, Any] | None = None,
        *,
        blocks: Sequence[Graph] = (),
        name: str | None = None,
        source: Source | str = "",
    ) -> tuple[str, ...]:
        """Add a node of any number of outputs; the op's definition infers their types.

        Parameters
        ----------
        op, inputs, attrs, source
            As :meth:`add_node` takes them.
        blocks : sequence of Graph
            Of an op of control flow; they belong to the node from then on.
        name : str, optional
            Wanted name of the first output; that of the second is ``name.1`` and so on.

        Returns
        -------
        tuple of str
            The names of the outputs: as wanted, with a suffix where that was taken.

        Raises
        ------
        OpError
            If there is no such op, or it does not allow these inputs, attrs or blocks.
        """
        return self._add_node(op, inputs, attrs, blocks, name, source)

    @_changes
    def add_computed_size(
        self, name: str, limits: tuple[int, int], origin: tuple[str, int], example: int
    ) -> None:
        """Add a size variable whose value a node computes, or an input gives.

        Parameters
        ----------
        name : str
        limits : tuple of int
            The least and the largest value.
        origin : tuple of str and int
            An int64 tensor that a node makes, or an input, and which of its elements.
        example : int
            A typical value.

        Raises
        ------
        InternalError
            If there is such a variable, or the tensor is none that can be an origin.
        """
        tensor, element = origin
        self._check_exists(tensor)
        spec = self.tensors[tensor]
        if name in self.sizes or (self.producer(tensor) is None and tensor not in self.inputs):
            raise InternalError(f"size {name!r}: expected a new one, of a node or an input")
        if spec.dtype != "int64" or not 0 <= element < bounds(spec.type.size)[0]:
            raise InternalError(f"size {name!r}: expected an int64, got {element} of {spec.type}")
        self.sizes[name], self.examples[name] = limits, example
        self.origins[name] = origin

    @_changes
    def remove_computed_size(self, name: str) -> None:
        """Remove a size variable that no tensor's shape and no attr mentions."""
        tensor, _ = self.origins.pop(name)
        del self.sizes[name], self.examples[name]
        self.prune([tensor])

    @_changes
    def set_outputs(self, names: Iterable[str]) -> None:
        """Make the named tensors the graph's outputs, in this order."""
        names = list(names)
        for name in names:
            self._check_exists(name)
        self.outputs = names
        self._order = None

    def unique_name(self, base: str) -> str:
        """Return ``base``, or ``base_1``, ``base_2``... where that is taken.

        Names that a plan's file keeps for itself get a ``_`` in front.
        """
        if base == METADATA_NAME or base.startswith(SAMPLE_PREFIX):
            base = f"_{base}"
        if base not in self.tensors:
            return base
        suffix = self._next_suffix.get(base, 1)
        while f"{base}_{suffix}" in self.tensors:
            suffix += 1
        self._next_suffix[base] = suffix + 1
        return f"{base}_{suffix}"

    # -- reading ----------------------------------------------------------------------------------

    @property
    def nodes(self) -> Mapping[str, Node]:
        """Nodes by the name of their first output, unordered; see :meth:`order`."""
        return MappingProxyType(self._nodes)

    def is_constant(self, tensor: str) -> bool:
        """Whether ``tensor`` depends on constants alone, and is none that a run computes."""
        return tensor in self.constants

    def value(self, tensor: str) -> np.ndarray | None:
        """Return the value of a constant that may be looked at; None of any other tensor.

        See :func:`taper_frontend.compiler.graph.constants.visible`.
        """
        return visible(self.constants[tensor]) if tensor in self.constants else None

    def producer(self, tensor: str) -> Node | None:
        """Return the node that makes ``tensor``; None for inputs, states and constants."""
        return self._producers.get(tensor)

    def consumers(self, tensor: str) -> list[Node]:
        """Return the nodes that read ``tensor``, each once however often it does."""
        return [self._nodes[output] for output in self._consumers[tensor]]

    def input_types(self, node: Node) -> list[TensorType | None]:
        """Return the types of the inputs of ``node``; None for those that are absent."""
        return self._types(node.inputs)

    def output_types(self, node: Node) -> list[TensorType]:
        """Return the types of the outputs of ``node``."""
        return [self.tensors[name].type for name in node.outputs]

    @property
    def signature(self) -> Signature:
        """The types of the inputs and the outputs."""
        ends = (self.inputs, self.outputs)
        inputs, outputs = (tuple(self.tensors[name].type for name in end) for end in ends)
        return Signature(inputs, outputs)

    def typical(self, size: int) -> int:
        """Return what ``size`` is at the examples of the size variables."""
        return size_at(size, self.examples)

    def nbytes(self, tensor: str) -> int:
        """Return the bytes that ``tensor`` has at the examples of the size variables."""
        return self.typical(self.tensors[tensor].nbytes)

    def is_static(self, node: Node) -> bool:
        """Whether no size that ``node`` reads or makes is for the inputs to decide."""
        groups = [self.tensors[name].shape for name in (*node.reads, *node.outputs)]
        groups += [v if isinstance(v, tuple) else (v,) for v in node.attrs.values()]
        return not any(isinstance(size, Size) for group in groups for size in group)

    @property
    def reads(self) -> list[str]:
        """What a run is given: the inputs, then the states."""
        return [*self.inputs, *(state.name for state in self.states)]

    @property
    def writes(self) -> list[str]:
        """What a run gives: the outputs, then the states' next values."""
        return [*self.outputs, *(state.next for state in self.states)]

    def is_output(self, tensor: str) -> bool:
        """Whether ``tensor`` is an output of the graph or the next value of a state."""
        return tensor in self.outputs or any(state.next == tensor for state in self.states)

    def is_used(self, tensor: str) -> bool:
        """Whether a node reads ``tensor``, a run gives it, or it gives a size its value."""
        return bool(self._consumers[tensor]) or self.is_output(tensor) or self.is_origin(tensor)

    def is_origin(self, tensor: str) -> bool:
        """Whether an element of ``tensor`` is the value of a size variable."""
        return any(tensor == origin for origin, _ in self.origins.values())

    @property
    def kept(self) -> list[str]:
        """What is read beside the nodes: what a run gives, and what gives sizes their values."""
        return [*self.writes, *dict.fromkeys(origin for origin, _ in self.origins.values())]

    def needs(self, node: Node) -> list[str]:
        """Return what has to be computed before ``node``: its inputs, and the sizes it depends on.

        A size that a node computes is one of those that stand in the types of the outputs and in
        the attrs.
        """
        if not self.origins:
            return node.reads
        found = [self.origins[name][0] for name in self.variables(node) if name in self.origins]
        return list(dict.fromkeys([*node.reads, *found]))

    def variables(self, node: Node) -> set[str]:
        """Return the size variables in the types of the outputs of ``node`` and in its attrs.

        Those in its blocks are among them.
        """
        groups = [self.tensors[name].shape for name in node.outputs]
        groups += [v if isinstance(v, tuple) else (v,) for v in node.attrs.values()]
        found = {atom.text for group in groups for size in group for atom in variables(size)}
        for block in node.blocks:
            found.update(*map(block.variables, block.nodes.values()))
        return found

    def sole_consumer(self, tensor: str) -> Node | None:
        """Return the one node that sees ``tensor``.

        None if there are others, it is an output, or it gives a size its value.
        """
        consumers = self._consumers[tensor]
        if len(consumers) != 1 or self.is_output(tensor) or self.is_origin(tensor):
            return None
        return self._nodes[next(iter(consumers))]

    def order(self) -> list[Node]:
        """Return the nodes in a topological order: as they were added wherever that is possible.

        Raises
        ------
        InternalError
            If the nodes form a cycle.
        """
        if self._order is None:
            self._order = tuple(self._sorted())
        return list(self._order)

    def verify(self) -> None:
        """Raise :class:`InternalError` if the graph breaks a rule; see :mod:`.verify`."""
        from taper_frontend.compiler.graph.verify import verify

        verify(self)

    def __str__(self) -> str:
        from taper_frontend.compiler.graph.printer import format_graph

        return format_graph(self)

    def copy(self) -> Graph:
        """Return a graph of its own, without the listener; arrays are shared."""
        twin = Graph(self.sizes, self.examples)
        twin.origins = dict(self.origins)
        twin.inputs, twin.outputs = list(self.inputs), list(self.outputs)
        twin.tensors, twin.constants = dict(self.tensors), dict(self.constants)
        twin.states = [copy(state) for state in self.states]
        twin._consumers = {name: dict(readers) for name, readers in self._consumers.items()}
        for node in self._nodes.values():
            twin._insert(node.copy())
        twin._next_suffix = dict(self._next_suffix)
        return twin

    # -- changing ---------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Let nothing change the graph, or those inside its nodes, from now on; a copy may."""
        self.is_frozen = True
        for node in self._nodes.values():
            for block in node.blocks:
                block.freeze()

    def rewire_input(self, node: Node, index: int, new: str) -> None:
        """Make ``node`` read ``new`` at position ``index``; the types of its outputs stay."""
        inputs = list(node.inputs)
        inputs[index] = new
        self._set_definition(node, node.op, inputs, node.attrs, node.blocks)

    def replace_node(
        self,
        node: Node,
        op: str,
        inputs: Sequence[str | None],
        attrs: Mapping[str, Any] | None = None,
        *,
        blocks: Sequence[Graph] = (),
        outputs: Sequence[str] | None = None,
    ) -> None:
        """Compute the outputs of ``node`` in another way; their names, types and readers stay.

        Nodes that only the old way needed are removed, so rewrites leave nothing dead behind; what
        they came from, the node comes from now.

        Parameters
        ----------
        node : Node
        op, inputs, attrs, blocks
            As :meth:`add_multi_output` takes them.
        outputs : sequence of str, optional
            Those of its outputs that the new way makes, in order; nothing uses the others.

        Raises
        ------
        OpError
            If there is no such op, or it does not allow these inputs, attrs or blocks.
        InternalError
            If the new way has other types.
        """
        old = node.reads
        if outputs is not None:
            self._leave_out(node, outputs)
        self._set_definition(node, op, _present(inputs), _plain(attrs or {}), list(blocks))
        removed: list[Node] = []
        self._prune(old, removed)
        node.source = node.source.joined(each.source for each in reversed(removed))

    def bypass(self, node: Node, *tensors: str) -> bool:
        """Let every reader of ``node`` read ``tensors``, one for each output, and remove ``node``.

        The names of graph outputs are the caller's and never change: where ``node`` makes one,
        the tensor takes over its name, or, if it has to keep its own (an input, a constant, another
        output), a COPY of it is the output.

        Returns
        -------
        bool
            Whether anything changed: False for an output that is that COPY already.

        Raises
        ------
        InternalError
            If a tensor has not the type of the output.
        """
        pairs = list(zip(node.outputs, tensors, strict=True))
        for name, tensor in pairs:
            self._check_same_type(name, tensor)
        readers = [self._reroute(name, tensor) for name, tensor in pairs]
        for name, tensor in pairs:
            if not self.is_output(name):
                self.listener.replaced(name, tensor)
            if tensor in self._producers:
                self._move_origins(name, tensor)
        if not any(map(self._is_bound, node.outputs)):
            self.prune(node.outputs)
        elif len(pairs) == 1 and not self._may_rename(*tensors):
            if node.op == "COPY" and node.inputs == [*tensors]:
                return any(readers)
            self.replace_node(node, "COPY", tensors)
        else:
            self._hand_over(node, pairs)
        return True

    def replace_by_constant(self, node: Node, *constants: Constant) -> None:
        """Make each output of ``node`` a constant; one of the graph's becomes a COPY of one."""
        old, specs = node.reads, [self.tensors[name] for name in node.outputs]
        self._drop_node(node)
        for spec, constant in zip(specs, constants, strict=True):
            if self._is_bound(spec.name):
                value = self.add_constant(f"{spec.name}.value", constant)
                self._reroute(spec.name, value)
                self._insert(Node("COPY", [value], [spec.name], source=node.source))
            else:
                self.tensors[spec.name] = spec._replace(role="constant")
                self.constants[spec.name] = constant
        self.prune(old)

    @_changes
    def replace_uses(self, old: str, new: str) -> None:
        """Let every reader of ``old``, the graph's outputs and its states use ``new`` instead."""
        self._check_same_type(old, new)
        self.listener.replaced(old, new)
        self._reroute(old, new)
        self._move_origins(old, new)
        self.outputs = [new if name == old else name for name in self.outputs]
        for state in self.states:
            state.next = new if state.next == old else state.next
        self._order = None

    def remove_node(self, node: Node) -> None:
        """Remove a node whose outputs nothing uses, and those outputs."""
        for name in node.outputs:
            if self.is_used(name):
                raise InternalError(f"node {node.output!r} is to be removed but {name!r} is used")
        self._drop_node(node)
        for name in node.outputs:
            self.remove_tensor(name)

    @_changes
    def remove_tensor(self, name: str) -> None:
        """Remove an unused input or constant, or what a removed node has left."""
        spec = self.tensors[name]
        if self.is_used(name) or name in self._producers or spec.role == "state":
            raise InternalError(f"tensor {name!r} is to be removed but is used or produced")
        self.listener.touch(name)
        del self.tensors[name], self._consumers[name]
        self.constants.pop(name, None)
        if name in self.inputs:
            self.inputs.remove(name)

    @_changes
    def rename(self, names: Mapping[str, str]) -> None:
        """Give tensors other names, all at once, in place of those that ``names`` maps to them.

        Raises
        ------
        InternalError
            If two tensors would have one name.
        """

        def new(name: str) -> str:
            return names.get(name, name)

        if len({new(name) for name in self.tensors}) < len(self.tensors):
            raise InternalError(f"two tensors would have one name: {dict(names)}")
        for old in names:
            self.listener.touch(old, new(old), *map(new, self._consumers[old]))
            self.listener.replaced(old, new(old))
        self.tensors = {
            new(name): spec._replace(name=new(name)) for name, spec in self.tensors.items()
        }
        self.constants = {new(name): constant for name, constant in self.constants.items()}
        for state in self.states:
            state.name, state.next = new(state.name), new(state.next)
        self.origins = {size: (new(name), at) for size, (name, at) in self.origins.items()}
        self.inputs = [new(name) for name in self.inputs]
        self.outputs = [new(name) for name in self.outputs]
        self._consumers = {
            new(name): {new(reader): None for reader in readers}
            for name, readers in self._consumers.items()
        }
        for node in self._nodes.values():
            node.outputs = [new(name) for name in node.outputs]
            node.inputs = [new(name) for name in node.inputs]
        self._nodes = {node.output: node for node in self._nodes.values()}
        self._producers = {new(name): node for name, node in self._producers.items()}
        self._order = None

    def name_outputs(self, names: Sequence[str]) -> None:
        """Give the first outputs these names; what has one of them gets another."""
        renamed = dict(zip(self.outputs, names, strict=False))
        taken = {*self.tensors, *names}
        for name in names:
            if name in self.tensors and name not in renamed:
                others = (f"{name}_{i}" for i in count(1))
                renamed[name] = next(other for other in others if other not in taken)
                taken.add(renamed[name])
        self.rename(renamed)

    def prune(self, names: Iterable[str]) -> int:
        """Remove those of the named tensors that nothing uses, and what only they needed.

        A node stays with all its outputs while one of them is used. Inputs and states stay: they
        are the module's signature.

        Returns
        -------
        int
            Nodes and constants removed.
        """
        return self._prune(names, [])

    # -- inside -----------------------------------------------------------------------------------

    def _prune(self, names: Iterable[str], removed: list[Node]) -> int:
        """Do it; the nodes that go are added to ``removed``, readers first."""
        count = 0
        stack = list(names)
        while stack:
            name = stack.pop()
            if name not in self.tensors or self.is_used(name) or name in self.reads:
                continue
            if (node := self._producers.get(name)) is None:
                self.remove_tensor(name)
            elif any(map(self.is_used, node.outputs)):
                continue
            else:
                stack += node.reads
                self.remove_node(node)
                removed.append(node)
            count += 1
        return count

    def _leave_out(self, node: Node, kept: Sequence[str]) -> None:
        """Let ``node`` make only these of its outputs; nothing uses the others."""
        left_out = [name for name in node.outputs if name not in kept]
        self._drop_node(node)
        for name in left_out:
            self.remove_tensor(name)
        node.outputs = list(kept)
        self._insert(node)

    def _check_exists(self, name: str) -> None:
        if name not in self.tensors:
            raise InternalError(f"no tensor {name!r} in the graph")

    def _check_same_type(self, old: str, new: str) -> None:
        if self.tensors[old].type != self.tensors[new].type:
            raise InternalError(
                f"{old!r} of {self.tensors[old].type} cannot be replaced by "
                f"{new!r} of {self.tensors[new].type}"
            )

    def _types(self, names: Sequence[str]) -> list[TensorType | None]:
        return [None if name == ABSENT else self.tensors[name].type for name in names]

    def _infer(
        self, op: str, inputs: Sequence[str], attrs: Mapping[str, Any], blocks: Sequence[Graph]
    ) -> tuple[TensorType, ...]:
        if op not in REGISTRY:
            raise OpError(f"no op {op!r} is registered")
        for name in inputs:
            if name != ABSENT:
                self._check_exists(name)
        signatures = [block.signature for block in blocks]
        return REGISTRY[op].infer_types(self._types(inputs), attrs, signatures)

    def _add_node(
        self,
        op: str,
        inputs: Sequence[str | None],
        attrs: Mapping[str, Any] | None,
        blocks: Sequence[Graph],
        name: str | None,
        source: Source | str,
        *,
        one: bool = False,
    ) -> tuple[str, ...]:
        attrs, operands, base = _plain(attrs or {}), _present(inputs), name or op.lower()
        types = self._infer(op, operands, attrs, blocks)
        if one and len(types) != 1:
            raise OpError(f"{op}: expected an op of one output, it has {len(types)}")
        names = [base, *(f"{base}.{index}" for index in range(1, len(types)))]
        outputs = [
            self._add_tensor(wanted, type_, "intermediate")
            for wanted, type_ in zip(names, types, strict=True)
        ]
        source = Source(source) if isinstance(source, str) else source
        self._insert(Node(op, operands, outputs, attrs, source, list(blocks)))
        return tuple(outputs)

    @_changes
    def _add_tensor(self, base: str, type_: TensorType, role: str) -> str:
        name = self.unique_name(base)
        self.tensors[name] = TensorSpec(name, type_.dtype, type_.shape, role, type_.format)
        self._consumers[name] = {}
        self.listener.touch(name)
        return name

    @_changes
    def _insert(self, node: Node) -> None:
        """Put a node whose outputs are tensors already into the indices."""
        self._nodes[node.output] = node
        self._producers.update(dict.fromkeys(node.outputs, node))
        self._link(node)

    def _link(self, node: Node) -> None:
        self.listener.touch(*node.outputs)
        for name in node.reads:
            self._consumers[name][node.output] = None
        for block in node.blocks:
            block._share_sizes(self)
            block.listener = _Within(self, node)
        self._order = None

    def _share_sizes(self, around: Graph) -> None:
        """Have the size variables of the graph around this one."""
        if self.sizes is not around.sizes:
            self.sizes, self.examples = around.sizes, around.examples
            for node in self._nodes.values():
                for block in node.blocks:
                    block._share_sizes(self)

    def _unlink(self, node: Node) -> None:
        for name in node.reads:
            self._consumers[name].pop(node.output, None)
        self._order = None

    @_changes
    def _drop_node(self, node: Node) -> None:
        self._check_present(node)
        self.listener.touch(*node.outputs)
        self._unlink(node)
        del self._nodes[node.output]
        for name in node.outputs:
            del self._producers[name]

    def _check_present(self, node: Node) -> None:
        if self._nodes.get(node.output) is not node:
            raise InternalError(f"node {node.output!r} is not in the graph")

    @_changes
    def _set_definition(
        self,
        node: Node,
        op: str,
        inputs: list[str],
        attrs: dict[str, Any],
        blocks: list[Graph],
    ) -> None:
        self._check_present(node)
        expected, inferred = self.output_types(node), self._infer(op, inputs, attrs, blocks)
        if [*inferred] != expected:
            raise InternalError(
                f"{node.output!r}: expected {_types_text(expected)} of its new "
                f"definition, got {_types_text(inferred)} of {op}"
            )
        self._unlink(node)
        node.op, node.inputs, node.attrs, node.blocks = op, inputs, attrs, blocks
        self._link(node)

    def _replace_in(self, consumer: Node, old: str, new: str) -> None:
        inputs = [new if name == old else name for name in consumer.inputs]
        self._set_definition(consumer, consumer.op, inputs, consumer.attrs, consumer.blocks)

    def _reroute(self, old: str, new: str) -> bool:
        """Let every node that reads ``old`` read ``new``; say whether there was one."""
        consumers = self.consumers(old)
        for consumer in consumers:
            self._replace_in(consumer, old, new)
        return bool(consumers)

    def _move_origins(self, old: str, new: str) -> None:
        """Let each size that is an element of ``old`` be that of ``new``."""
        for size, (name, element) in self.origins.items():
            if name == old:
                self.origins[size] = new, element

    def _is_bound(self, tensor: str) -> bool:
        """Whether ``tensor`` has to be made by a node, as the caller or a size reads it."""
        return self.is_output(tensor) or self.is_origin(tensor)

    def _may_rename(self, tensor: str) -> bool:
        """Whether a node makes ``tensor`` and its name is not the caller's."""
        return tensor in self._producers and not self.is_output(tensor)

    def _hand_over(self, node: Node, pairs: Sequence[tuple[str, str]]) -> None:
        """Remove ``node``; for each output that is the graph's, have a tensor take over its name.

        Where that cannot be, the output becomes a COPY of it.
        """
        old, kept = node.reads, {tensor for _, tensor in pairs}
        self._drop_node(node)
        renamed: dict[str, str] = {}
        for name, tensor in pairs:
            tensor = renamed.get(tensor, tensor)
            if not self._is_bound(name):
                self.remove_tensor(name)
            elif self._may_rename(tensor):
                self._rename(tensor, name)
                renamed[tensor] = name
            else:
                self._insert(Node("COPY", [tensor], [name], source=node.source))
        self.prune(name for name in old if name not in kept)

    def _rename(self, old: str, name: str) -> None:
        """Give an output of a node the name of the tensor whose node was dropped before."""
        node = self._producers.pop(old)
        self._unlink(node)
        del self._nodes[node.output]
        self.listener.replaced(old, name)
        node.outputs[node.outputs.index(old)] = name
        self._insert(node)
        self._reroute(old, name)
        self._move_origins(old, name)
        self.remove_tensor(old)

    def _sorted(self) -> Iterable[Node]:
        """Depth-first over the nodes as they were added, each after its producers."""
        done: set[str] = set()
        open_: set[str] = set()
        for root in self._nodes:
            stack = [root]
            while stack:
                name = stack[-1]
                if name in done:
                    stack.pop()
                    continue
                node = self._nodes[name]
                needs = self.needs(node)
                producers = [self._producers[t].output for t in needs if t in self._producers]
                waiting = [producer for producer in producers if producer not in done]
                if not waiting:
                    stack.pop()
                    done.add(name)
                    yield node
                    continue
                if name in open_:
                    raise InternalError(f"the graph has a cycle through {name!r}")
                open_.add(name)
                stack += reversed(waiting)


class _Within(Listener):
    """Tells the graph around a block of its changes: as changes of the node that has the block."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self._graph, self._node = graph, node

    def touch(self, *names: str) -> None:
        """Tell that the node has changed."""
        self._graph.listener.touch(*self._node.outputs)

    def enter(self, stage: str, pass_: str) -> None:
        """Tell that a pass begins."""
        self._graph.listener.enter(stage, pass_)

    def leave(self) -> None:
        """Tell that the pass has ended."""
        self._graph.listener.leave()

    def fired(self, rule: str, node: str) -> None:
        """Tell that ``rule`` was applied inside."""
        self._graph.listener.fired(rule, self._node.output)


def _literal(what: str, array: np.ndarray, dtype: str | None) -> Literal:
    """Make a literal, or say what is wrong with the array of ``what``."""
    try:
        return literal(array, dtype)
    except OpError as error:
        raise OpError(f"{what}: {error}") from None


def _present(inputs: Sequence[str | None]) -> list[str]:
    """Return the inputs as nodes have them: named where they are absent, and not so at the end."""
    names = [ABSENT if name is None else name for name in inputs]
    while names and names[-1] == ABSENT:
        names.pop()
    return names


def _types_text(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types))


def _plain(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attrs with their lists frozen: nodes may share them."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in attrs.items()}
