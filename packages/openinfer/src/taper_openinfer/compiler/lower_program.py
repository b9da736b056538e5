"""Lower a linked program to a graph, in one walk over its nodes.

One run of the plan is one step of the program. Loop bounds and indices of weight tables are known
when the program is lowered. So the graph is straight-line code, except for branches and long loops,
which become nodes with blocks.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.compiler.graph import Graph
from taper_frontend.compiler.graph.constants import Constant, Parameter
from taper_frontend.errors import ExportError
from taper_openinfer.compiler.beside import Beside
from taper_openinfer.compiler.branches import lower_branch, lower_loop
from taper_openinfer.compiler.carriers import carried, carrier
from taper_openinfer.compiler.compiled_caches import CompiledCache, Index
from taper_openinfer.compiler.operators import lower_op
from taper_openinfer.compiler.outputs import Uses, find_outputs
from taper_openinfer.compiler.reached import find_reached
from taper_openinfer.compiler.refusal import CannotLower
from taper_openinfer.compiler.scope import POISON, Scope, filled
from taper_openinfer.compiler.touched import index_names
from taper_openinfer.dtypes import taper_name
from taper_openinfer.errors import OpenInferError, Problem, ProgramError, TextPosition
from taper_openinfer.language import graph as g
from taper_openinfer.simulator.variables import filled as filled_array
from taper_runtime.base.errors import OpError
from taper_runtime.base.records import NamedTuple
from taper_runtime.ops.opdef import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from taper_openinfer.language.graph import Access, Node
    from taper_openinfer.link import LinkedProgram, LinkedVariable
    from taper_openinfer.oinf.reader import Model


#: Limits on the nodes lowered, repetitions included, and on the depth of nested branches.
MAX_NODES, MAX_DEPTH = 1 << 17, 64


class TooLong(Exception):
    """The program has more nodes than a plan may have."""


class LoweredGraph(NamedTuple):
    """The result of lowering: a graph that is not optimized yet, and the names of its outputs."""

    graph: Graph
    output_names: list[str]


def lower(program: LinkedProgram, outputs: Sequence[str] | None = None) -> LoweredGraph:
    """Lower a program.

    Parameters
    ----------
    program : LinkedProgram
    outputs : sequence of str, optional
        The variables that a run gives; by default those of :func:`.outputs.find_outputs`.

    Raises
    ------
    ProgramError
        Listing all that cannot be lowered, each with its place.
    """
    return ProgramLowering(program).run(outputs)


class ProgramLowering:
    """Lowers one program, in one walk.

    Attributes
    ----------
    program : LinkedProgram
    caches : dict of str to CompiledCache
        The states that hold the persistent variables with indices.
    graph : Graph
        The graph of the plan.
    problems : list of Problem
        The problems found so far.
    """

    def __init__(self, program: LinkedProgram) -> None:
        self.program = program
        self.graph = Graph()
        self.problems: list[Problem] = []
        self._beside = Beside(program.graph)
        self.caches: dict[str, CompiledCache] = {}
        self._constants: dict[str, Constant] = {}
        self._sizes: Mapping[str, int] = program.model.sizevars
        self._uses = Uses()
        self._count = 0
        self._running: list[str] = []
        self._place: TextPosition | None = None

    def run(self, outputs: Sequence[str] | None) -> LoweredGraph:
        """Lower the whole program."""
        graph, scope = self.graph, Scope(self.graph)
        self._declare(scope)
        try:
            self.block(scope, g.ENTRY)
        except TooLong:
            message = f"expected at most {MAX_NODES} nodes with its loops and branches, got more"
            raise ProgramError([Problem(message)], self.program.graph.name) from None
        with self._at(None):  # a step that ends before its await still waits for the blocks
            self._beside.join(self, scope)
        self._place = None
        names = list(find_outputs(self.program, outputs, self._uses))
        found = [self._given(scope, name) for name in names]
        names = [f"output_{name}" if name in graph.reads else name for name in names]
        if self.problems:
            raise ProgramError(self.problems, self.program.graph.name)
        graph.set_outputs(found)
        for state in graph.states:
            graph.set_next(state.name, scope.values[state.name])
        return LoweredGraph(graph, names)

    def _given(self, scope: Scope, name: str) -> str:
        """Return the tensor of a variable that is an output of the plan."""
        variable = self.program.variables[name]
        with self._at(variable.declaration.place, name):
            self._dtype(variable.dtype)
        return self.load(scope, name)

    @contextmanager
    def _at(self, place: TextPosition | None, variable: str | None = None) -> Iterator[None]:
        """Record a CannotLower from the body of the with statement as a problem, and continue."""
        before, self._place = self._place, place or self._place
        try:
            yield
        except (CannotLower, OpError, OpenInferError) as error:
            problem = Problem(str(error), self._place, variable)
            if problem not in self.problems:
                self.problems.append(problem)
        finally:
            self._place = before

    @property
    def _is_beside(self) -> bool:
        """Return whether the current block runs beside the entry block.

        There an await and a yield hand values back.
        """
        return len(self._running) > 1 and self._running[1] in self._beside.blocks

    # -- nodes -----------------------------------------------------------------------------------

    def block(self, scope: Scope, name: str) -> None:
        """Lower a block up to its end or its `return`."""
        if name in self._running:
            raise CannotLower(
                f"block {name} runs itself, a number of times that depends on the run"
            )
        if len(self._running) >= MAX_DEPTH:
            raise CannotLower(
                f"block {name}: expected at most {MAX_DEPTH} branches from entry, got more"
            )
        self._running.append(name)
        self.nodes(scope, self.program.graph.blocks[name].nodes)
        self._running.pop()

    def nodes(self, scope: Scope, nodes: Iterable[Node]) -> bool:
        """Lower nodes in order; return whether a `return` ended the block."""
        for node in nodes:
            self._count += _work(node)
            if self._count > MAX_NODES:
                raise TooLong
            self._uses.note(node)
            ended = False
            line = g.describe(node.kind)
            place = "" if node.place is None else f":{node.place.line}"
            scope.source = f"{self.program.graph.name}{place} {line}".strip()
            with self._at(node.place):
                ended = self._node(scope, node)
            if ended:
                return True
        return False

    def _node(self, scope: Scope, node: Node) -> bool:
        """Lower one node; return whether it returns from the block."""
        match node.kind:
            case g.Return():
                return True
            case g.Loop() as loop:
                return lower_loop(self, scope, loop)
            case g.Branch() as branch:
                lower_branch(self, scope, branch)
            case g.Assign() as assign:
                self._assign(scope, assign)
            case g.Op() as op:
                self._op(scope, op)
            case g.Transfer(src=src, dst=dst):
                scope.values[dst.base] = self.access(scope, src)
            case g.CacheRead(src=src, dst=dst):
                scope.values[dst.base] = POISON
                scope.values[dst.base] = self._cache_read(scope, src)
            case g.CacheWrite(src=src, dst=dst):
                self._cache_write(scope, src, dst)
            case g.CacheReset(target=target):
                self._cache_reset(scope, target)
            case g.CacheIncrement(target=name, amount=amount):
                scope.values[name] = self._increment(scope, name, "ADD", amount)
            case g.CacheDecrement(target=name, amount=amount):
                scope.values[name] = self._increment(scope, name, "SUB", amount)
            case g.Yield() if not self._is_beside:
                self._beside.start(self, scope)
            case g.Await() if not self._is_beside:
                self._beside.join(self, scope)
        return False  # a barrier and a dep order nodes; in a plan the data do that

    def _assign(self, scope: Scope, assign: g.Assign) -> None:
        scope.values[assign.name] = POISON
        constant = self._stored(self.program.variables[assign.name])
        scope.values[assign.name] = scope.graph.add_constant(assign.name, constant)

    def _op(self, scope: Scope, op: g.Op) -> None:
        output = op.output.base
        inputs = [self.access(scope, access) for access in op.inputs]
        scope.values[output] = POISON
        if POISON in inputs:
            return
        settings, variables = self.program.settings(op), self.program.variables
        dtypes = [variables[access.base].dtype for access in op.inputs]
        scope.values[output] = lower_op(
            scope, op.op, inputs, dtypes, settings, variables[output].dtype
        )

    def _increment(self, scope: Scope, name: str, op: str, amount: int) -> str:
        tensor = scope.values[name]
        return tensor if tensor == POISON else scope.binary(op, tensor, amount)

    def _cache_read(self, scope: Scope, src: Access) -> str:
        cache, tensor = self.caches.get(src.base), scope.values[src.base]
        if cache is None or tensor == POISON:
            return tensor
        indices = self._indices(scope, src)
        return POISON if indices is None else cache.read(scope, indices)

    def _cache_write(self, scope: Scope, src: Access, dst: Access) -> None:
        cache, tensor = self.caches.get(dst.base), scope.values[dst.base]
        value = self.access(scope, src)
        indices = self._indices(scope, dst) if cache is not None else []
        if POISON in (value, tensor) or indices is None:
            scope.values[dst.base] = POISON
        elif cache is not None:
            cache.write(scope, indices, value)
        elif scope.type(value) != scope.type(tensor):
            expected, got = scope.type(tensor).shape, scope.type(value).shape
            raise CannotLower(f"{dst.base}: expected a value of shape {expected}, got {got}")
        else:
            scope.values[dst.base] = value

    def _cache_reset(self, scope: Scope, target: Access) -> None:
        cache, name = self.caches.get(target.base), target.base
        if scope.values[name] == POISON:
            return
        if cache is None:
            variable = self.program.variables[name]
            first = filled(first_value(variable), self._dtype(variable.dtype), variable.shape)
            scope.values[name] = scope.graph.add_constant(f"{name}.first", first)
        elif (indices := self._indices(scope, target)) is None:
            scope.values[name] = POISON
        else:
            cache.reset(scope, indices)

    # -- variables -------------------------------------------------------------------------------

    def _declare(self, scope: Scope) -> None:
        """Add an input for each dynamic variable, and a state for each persistent one."""
        reached = find_reached(self.program)
        for name, variable in self.program.variables.items():
            declared = variable.declaration
            if declared.kind not in ("dynamic", "persistent"):
                continue
            with self._at(declared.place, name):
                scope.values[name] = POISON
                dtype = self._dtype(variable.dtype)
                if declared.kind == "dynamic":
                    scope.values[name] = scope.graph.add_input(name, dtype, variable.shape)
                    continue
                first = first_value(variable)
                shape = variable.shape
                if declared.table or declared.auto_dim:
                    cache = self.caches[name] = CompiledCache(variable, dtype, reached[name], first)
                    scope.extents[name], shape = cache.at_start, cache.shape
                array = np.full(shape, first)
                scope.values[name] = scope.graph.add_state(name, array, dtype)

    def load(self, scope: Scope, name: str) -> str:
        """Return the current tensor of a variable; a constant is added at its first use."""
        if name not in scope.values:
            variable = self.program.variables[name]
            scope.values[name] = POISON
            with self._at(variable.declaration.place, name):
                scope.values[name] = scope.graph.add_constant(name, self._stored(variable))
        return scope.values[name]

    def loaded(self, scope: Scope, names: Iterable[str]) -> list[str]:
        """Load the variables with these names; return the names that have a tensor."""
        found = [n for n in names if n in scope.values or self._is_stored(n)]
        return [name for name in found if self.load(scope, name) != POISON]

    def _is_stored(self, name: str) -> bool:
        variable = self.program.variables.get(name)
        return variable is not None and variable.declaration.pattern is None

    def _stored(self, variable: LinkedVariable) -> Constant:
        """Return a variable's value at the start of a step."""
        if variable.tensor is not None:
            return self._tensor(variable.tensor)
        dtype = carrier(variable.dtype)
        return filled(carried(variable.dtype, first_value(variable)), dtype, variable.shape)

    def _tensor(self, name: str) -> Constant:
        """Return a tensor of the file as a constant, whose data are read when a plan is made."""
        if name not in self._constants:
            model = self.program.model
            info = model.tensors[name]
            type_ = TensorType(carrier(info.dtype), tuple(info.shape))
            read = partial(_read, model, name)
            quantization = info.quantization
            self._constants[name] = Parameter(type_, (name,), read, quantization=quantization)
        return self._constants[name]

    def _dtype(self, dtype: str) -> str:
        """Return Taper's dtype for an input, an output or a state of the plan."""
        found = taper_name(dtype)
        if found is None:
            raise CannotLower(
                f"plans have no inputs, states or outputs of {dtype}, only constants and values "
                "that depend only on them"
            )
        return found

    def access(self, scope: Scope, access: Access) -> str:
        """Return the tensor of an operand: a variable, or an entry of a prefix table."""
        variable = self.program.variables.get(access.base)
        if variable is None or variable.declaration.pattern is None:
            return self.load(scope, access.base)
        values = {name: self._known_index(scope, name, access) for name in index_names(access)}
        tensor = self.program.resolve(access, values)
        if tensor not in scope.values:
            scope.values[tensor] = scope.graph.add_constant(tensor, self._tensor(tensor))
        return scope.values[tensor]

    # -- names in indices and bounds -------------------------------------------------------------

    def size(self, bound: int | str) -> int | None:
        """Return the value of a bound that the file or the program fixes, or None."""
        if isinstance(bound, int):
            return bound
        return self._sizes.get(bound)

    def bound(self, scope: Scope, bound: int | str) -> int | str:
        """Return an end of a loop: its value, or the tensor that holds it."""
        size = self.size(bound)
        if size is not None:
            return size
        assert isinstance(bound, str)
        if bound in scope.indices:
            return scope.indices[bound]
        tensor = self.load(scope, bound)
        if tensor == POISON:
            raise CannotLower(f"the bound {bound} cannot be lowered")
        return scope.reshape(tensor, ())

    def _indices(self, scope: Scope, access: Access) -> list[Index] | None:
        """Return the indices of an access to a cache, or None if one depends on a lost value."""
        cache = self.caches[access.base]

        def value(given: int | str) -> int | str:
            if isinstance(given, int):
                return given
            if (size := self.size(given)) is not None:
                return size
            if (count := cache.count(scope, given)) is not None:
                return count
            if given in scope.indices:
                return scope.indices[given]
            tensor = self.load(scope, given)
            return tensor if tensor == POISON else scope.reshape(tensor, ())

        def end(given: int | str | None) -> int | str | None:
            return None if given is None else value(given)

        found: list[Index] = []
        for index in access.indices:
            ends = (
                (value(index.value),)
                if isinstance(index, g.Single)
                else (end(index.start), end(index.end))
            )
            if POISON in ends:
                return None
            found.append(ends[0] if len(ends) == 1 else ends)
        return found

    def _known_index(self, scope: Scope, name: str, access: Access) -> int:
        """Return the value of a name that indexes a prefix table."""
        size = self.size(name)
        value = scope.indices.get(name) if size is None else size
        if not isinstance(value, int):
            raise CannotLower(f"{access}: expected an index that is known before a run, got {name}")
        return value

    # -- where ways meet -------------------------------------------------------------------------

    def join(self, scope: Scope, inners: Sequence[Scope], written: Iterable[str]) -> None:
        """Merge what alternative blocks leave.

        A variable whose tensors differ in type becomes POISON. Knowledge of the caches is joined.
        """
        for name in written:
            tensors = [inner.values[name] for inner in inners]
            if POISON in tensors:
                scope.values[name] = POISON
                continue
            types = {inner.type(x) for inner, x in zip(inners, tensors, strict=True)}
            if len(types) > 1:
                scope.values[name] = POISON
                shapes = " or ".join(sorted(str(list(type_.shape)) for type_ in types))
                with self._at(self._place, name):
                    raise CannotLower(f"{name}: expected one shape from all branches, got {shapes}")
            if name in scope.extents:
                extent = inners[0].extents[name]
                for inner in inners[1:]:
                    extent = extent.joined(inner.extents[name])
                scope.extents[name] = extent


def _work(node: Node) -> int:
    """Return the cost of one node in nodes: a branch copies what it runs."""
    if not isinstance(node.kind, g.Branch):
        return 1
    return 8 if node.kind.condition is None else 64


def first_value(variable: LinkedVariable) -> np.ndarray:
    """Return the initial value of each element of a variable without data, without dims."""
    return filled_array(variable.dtype, (), variable.init)


def _read(model: Model, name: str) -> np.ndarray:
    """Return a tensor of a file in the form that a plan stores."""
    dtype = model.tensors[name].dtype
    try:
        return np.asarray(carried(dtype, model.read(name)), order="C")
    except CannotLower as error:
        raise ExportError(f"tensor {name!r}: {error}") from None
