"""Build a graph for handlers, which emit nodes and refuse calls through this class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from taper_frontend.compiler.analysis.float_codes import TORCH_FLOATS
from taper_frontend.compiler.graph.node import SourceLine
from taper_frontend.lowering import complex_ops
from taper_frontend.lowering.aten_program import (
    BodyGraph,
    SymbolicNumber,
    replaced,
    tensors_of,
    unbacked_shapes,
)
from taper_frontend.lowering.representation import (
    Pairs,
    computed,
    is_complex,
    number_array,
    number_dtype,
    real_dtype,
    represented,
    represented_type,
    result_dtype,
)
from taper_runtime.base.random_state import new_state
from taper_runtime.base.sizes import (
    HIGH,
    Size,
    UndecidedError,
    bounds,
    is_static,
    largest,
    linear,
    smallest,
    variables,
)
from taper_runtime.ops.convert import FLOATS_16_BIT
from taper_runtime.ops.elementwise import DIVISIONS
from taper_runtime.ops.opdef import TensorType
from taper_runtime.ops.type_rules import INTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import sympy

    from taper_frontend.compiler.graph import Graph
    from taper_frontend.compiler.graph.node import Node as GraphNode
    from taper_frontend.lowering.aten_program import Node, Weight
    from taper_frontend.lowering.symbols import Sizes
    from taper_runtime.ops.opdef import Shape

#: The type of an ATen argument that may be a tensor or a number; an int may be a size.
Operand = str | int | float | bool


#: Op -> the place of the input that holds positions, which a run checks.
_POSITIONS = dict.fromkeys(("EMBEDDING", "EMBEDDING_BAG", "GATHER", "INDEX_SELECT", "SCATTER"), 1)


class Refusal(Exception):
    """The node being lowered is not supported."""

    def __init__(self, reason: str, category: str) -> None:
        super().__init__(reason)
        self.category = category


class Lowering:
    """Builds the graph for one ATen node at a time.

    Attributes
    ----------
    graph : Graph
    node : Node
        The node that is being lowered, for facts that the arguments do not give.
    sizes : Sizes
    generator : str or None
        The state of the generator after the draws so far; None if there were none.
    generator_state : str or None
        The state of the graph that holds the generator before the run.
    training : bool
        Whether the module is in training mode.
    measured : dict of sympy.Symbol to str
        The int64 tensors that hold the values of torch's symbols.
    taken : str or None
        A bool scalar that tells whether a run needs what is lowered: in a branch that is computed
        in any case. Without that, nothing in the branch may refuse a value, or take long.
    """

    node: Node

    def __init__(
        self,
        graph: Graph,
        sizes: Sizes,
        training: bool = False,
        prefix: str = "",
        lower_block: Callable[..., Graph] | None = None,
        lower_inline: Callable[..., list[Any]] | None = None,
    ) -> None:
        """Start with an empty node; :meth:`begin` sets the first one."""
        self.graph = graph
        self.sizes = sizes
        self.training = training
        self._prefix = prefix
        self._lower_block = lower_block
        self._lower_inline = lower_inline
        self.generator: str | None = None
        self.generator_state: str | None = None
        self.measured: dict[sympy.Symbol, str] = {}
        self.taken: str | None = None
        self._name = ""
        self._source = SourceLine()
        self._outputs: tuple[TensorType | None, ...] = ()
        # the nodes and constants that this node has added to the graph, in order
        self._emitted: dict[str, None] = {}
        self._wide = False
        # the generator's state before the node
        self._before: str | None = None

    # -- what is lowered --------------------------------------------------------------------------

    @property
    def aten(self) -> str:
        """Return the name of the node's ATen op, without its overload."""
        return self.node.target.split(".")[1]

    @property
    def outputs(self) -> tuple[TensorType | None, ...]:
        """Return torch's types of the op's results; None for a result that is not a tensor.

        If the node is computed in float32 (see :meth:`widen`), halves have the type float32.
        """
        if not self._wide:
            return self._outputs
        return tuple(t and TensorType(computed(t.dtype), t.shape) for t in self._outputs)

    @property
    def output(self) -> TensorType:
        """Return torch's type of the op's first result."""
        first = self.outputs[0]
        assert first is not None
        return first

    def type(self, tensor: str) -> TensorType:
        """Return dtype and shape of a tensor, as in torch."""
        return represented_type(tensor, self.graph.tensors[tensor].type)

    def dtype(self, tensor: str) -> str:
        """Return the dtype of a tensor."""
        return self.type(tensor).dtype

    def shape(self, tensor: str) -> Shape:
        """Return the shape of a tensor."""
        return self.type(tensor).shape

    def rank(self, tensor: str) -> int:
        """Return the number of dimensions of a tensor."""
        return len(self.shape(tensor))

    def axis(self, tensor: str, dim: int) -> int:
        """Count ``dim`` from the front; a scalar has one dimension, as in torch."""
        return dim % max(self.rank(tensor), 1)

    def reads(self, index: int) -> bool:
        """Return whether anything reads one of the op's results."""
        return any(user.args[1] == index and user.users for user in self.node.users)

    # -- building ---------------------------------------------------------------------------------

    def emit(self, op: str, inputs: Sequence[str | None], /, **attrs: Any) -> str:
        """Add a node with one output and return its name; None is an absent input.

        For complex numbers the op is replaced first (:mod:`.complex_ops`).
        """
        if any(isinstance(name, Pairs) for name in inputs):
            return complex_ops.emit(self, op, inputs, attrs)
        if (place := _POSITIONS.get(op)) is not None and (positions := inputs[place]) is not None:
            inputs = [*inputs[:place], self.if_taken(positions, 0), *inputs[place + 1 :]]
        output = self.graph.add_node(
            op, inputs, attrs, name=f"{self._name}.{op.lower()}", source=self._source
        )
        self._emitted[output] = None
        self._check_not_empty([output])
        return output

    def emit_multi(
        self,
        op: str,
        inputs: Sequence[str | None],
        /,
        blocks: Sequence[Graph] = (),
        **attrs: Any,
    ) -> tuple[str, ...]:
        """Add a node of any number of outputs, or one with blocks, and return their names."""
        if not blocks and any(isinstance(name, Pairs) for name in inputs):
            return complex_ops.emit_multi(self, op, inputs, attrs)
        first = f"{self._name}.{op.lower()}"
        outputs = self.graph.add_multi_output(
            op, inputs, attrs, blocks=blocks, name=first, source=self._source
        )
        self._emitted.update(dict.fromkeys(outputs))
        self._check_not_empty(outputs)
        return outputs

    def constant(self, value: np.ndarray, dtype: str | None = None) -> str:
        """Add a constant.

        Parameters
        ----------
        value : numpy.ndarray
            The array that a plan stores.
        dtype : str, optional
            Its dtype in torch, where that is not numpy's name.
        """
        stored = None if dtype is None else real_dtype(dtype)
        name = self.graph.add_constant(f"{self._name}.constant", value, stored)
        self._emitted[name] = None
        return name if dtype is None else represented(name, dtype)

    def weight(self, weight: Weight) -> str:
        """Add a tensor of the program; it is copied, so the plan shares nothing with a model."""
        if reason := weight.refused:
            self.unsupported(reason, "dtype")
        value = weight.value
        if value.is_of_codes:
            return self.constant(TORCH_FLOATS[value.dtype][weight.read()])
        return self.constant(weight.read().copy(), value.dtype)

    def random(self, law: str, shape: Sequence[int], dtype: str, limit: int = 0) -> str:
        """Draw random numbers, after all earlier draws.

        This is refused in training mode: it cannot be known whether the draws are intended, or a
        layer was left in training mode by mistake.
        """
        if self.training:
            self.unsupported("it draws random numbers in training mode; call eval() before export")
        attrs = {"law": law, "limit": limit}
        state = self.generator_now()
        drawn = self.emit("RANDOM", [state], shape=tuple(shape), dtype=dtype, **attrs)
        self.generator = self.emit("RANDOM_NEXT", [state, drawn], **attrs)
        return drawn

    def generator_now(self) -> str:
        """Return the state of the generator after the draws so far."""
        if self.generator is None:
            self.generator = self.graph.add_state("generator", new_state(0))
            self.generator_state = self._before = self.generator
        return self.generator

    def block(
        self,
        body: BodyGraph,
        name: str,
        leading: Sequence[TensorType],
        others: Sequence[Operand],
        *,
        is_condition: bool = False,
    ) -> Graph:
        """Lower the body of a control-flow op.

        Where :attr:`taken` is a tensor, the body gets it as its last operand.

        Parameters
        ----------
        body : BodyGraph
        name : str
            The role of the body; part of the names of its tensors.
        leading : sequence of TensorType
            The types of its first inputs. The first is the state of the generator, which torch does
            not have.
        others : sequence of str or number
            The operands after these. Constants are copied into the body, numbers and sizes are
            inserted, and other tensors are further inputs, see :meth:`free`.
        is_condition : bool
            Whether the result tells if a loop goes on. A loop that is not taken does not.

        Returns
        -------
        Graph
            The body with its outputs: the state of the generator after its draws, then the results,
            with numbers as scalars.
        """
        assert self._lower_block is not None
        prefix, source = f"{self._name}.{name}.", self._source.line
        return self._lower_block(body, prefix, source, leading, others, is_condition)

    def has_sizes_of_values(self, body: BodyGraph) -> bool:
        """Return whether values decide shapes in a body, or in a body inside of it."""
        if not unbacked_shapes(body.nodes) <= self.sizes.symbols.keys():
            return True
        bodies = [node.attribute for node in body.nodes if node.op == "get_attr"]
        return any(self.has_sizes_of_values(each) for each in bodies if isinstance(each, BodyGraph))

    def inline(
        self,
        body: BodyGraph,
        name: str,
        operands: Sequence[Operand],
        taken: str | None = None,
    ) -> list[Any]:
        """Lower the nodes of a body into the graph itself; return its results.

        ``taken`` is the new value of :attr:`taken`, by default the present one.
        """
        assert self._lower_inline is not None
        prefix, taken = f"{self._name}.{name}.", taken or self.taken
        return self._lower_inline(body, prefix, self._source.line, operands, taken)

    def go_on_from(self, other: Lowering) -> None:
        """Continue the random draws of another lowering, and take over the sizes it measured."""
        self.generator, self.generator_state = other.generator, other.generator_state
        self.measured = other.measured

    def free(self, operands: Sequence[Operand]) -> list[str]:
        """Return the operands of a body that become inputs, without constants and numbers."""
        names = [name for name in (*operands, self.taken) if isinstance(name, str)]
        return [name for name in names if not self.graph.is_constant(name)]

    def full(self, shape: Sequence[int], value: Operand, dtype: str) -> str:
        """Return a tensor filled with ``value``: a number, a size or a scalar tensor."""
        if isinstance(value, str):
            scalar = self.cast(value, dtype)
        elif isinstance(value, Size):
            scalar = self.size_value(value, dtype)
        else:
            scalar = self.constant(number_array(value, dtype), dtype)
        return self.expand(scalar, shape)

    @property
    def bound_size(self) -> int | None:
        """Return the size variable whose value the node, which returns a number, determines."""
        value = self.node.value
        if (
            not isinstance(value, SymbolicNumber)
            or value.kind != "int"
            or not self.sizes.knows(value)
        ):
            return None
        return self.sizes.convert(value.expr)

    def is_unmeasured(self, size: int) -> bool:
        """Return whether ``size`` is that of a symbol without a value yet."""
        return size in self.sizes.unmeasured

    def if_taken(self, tensor: str, other: Operand) -> str:
        """Return the tensor where a run needs it (see :attr:`taken`), else ``other``."""
        if self.taken is None:
            return tensor
        return self.apply("WHERE", self.taken, tensor, other, dtype=self.dtype(tensor))

    def measure(
        self, size: int, tensor: str, *, harmless: bool = False, number: bool = False
    ) -> None:
        """Make the only element of an int64 tensor the value of a size.

        A check of the model becomes a size with one value, which every run compares.

        Parameters
        ----------
        size : size
        tensor : str
        harmless : bool
            Whether the value is in range in a branch that is not taken too.
        number : bool
            Whether nothing else depends on the value. In a branch that is not taken, the size is
            then the least one.
        """
        if not self.is_unmeasured(size):
            return
        if self.taken is not None and not harmless and not number:
            self.unsupported(
                "expected sizes in a branch to be numbers of elements that a mask chooses, or "
                "numbers that item() reads; compute other sizes outside of the branch",
                "data-dependent",
            )
        waiting = self.sizes.unmeasured.pop(size)
        for name, side in waiting.checks:
            if isinstance(side, int):
                self._measure(name, self.apply("REMAINDER", tensor, side, dtype="int64"), number)
            else:
                self._measure(name, self._less(tensor, side), number)
        if waiting.variable is not None:
            value = self._less(tensor, waiting.base)
            if waiting.step > 1:
                value = self.apply("FLOOR_DIV", value, waiting.step, dtype="int64")
            self._measure(waiting.variable, value, number)
        self.measured[waiting.symbol] = tensor

    def _measure(self, name: str, tensor: str, number: bool) -> None:
        limits, example = self.sizes.measured[name]
        if number:
            tensor = self.if_taken(tensor, limits[0])
        self.graph.add_computed_size(name, limits, (tensor, 0), example)

    def _less(self, tensor: str, side: sympy.Expr) -> str:
        """Subtract an expression that is linear in symbols with values from an int64 tensor."""
        constant, terms = side.as_coeff_add()
        for term in terms:
            factor, symbol = term.as_coeff_Mul()
            value = self.measured.get(symbol) or self.size_value(
                self.sizes.convert(symbol), "int64"
            )
            part = self.apply("MUL", self.reshape(value, ()), int(factor), dtype="int64")
            tensor = self.apply("SUB", tensor, part, dtype="int64")
        if constant != 0:
            tensor = self.apply("SUB", tensor, int(constant), dtype="int64")
        return tensor

    def size_value(self, size: int, dtype: str) -> str:
        """Return a scalar tensor with the value of a size that inputs or nodes determine."""
        known = linear(size)
        if known is not None and known[0] in self.graph.origins and known[1:] == (1, 0):
            return self.cast(self.reshape(self.graph.origins[known[0]][0], ()), dtype)
        vector = self.emit("ARANGE", [], start=size, stop=size + 1)
        return self.cast(self.reshape(vector, ()), dtype)

    def cast(self, tensor: str, dtype: str) -> str:
        """Cast ``tensor``; nothing is emitted if it has the dtype already.

        A half is cast through float32, because kernels convert halves only to and from it.
        """
        source = self.dtype(tensor)
        if source == dtype:
            return tensor
        if is_complex(source) or is_complex(dtype):
            return complex_ops.cast(self, tensor, dtype)
        if (source in FLOATS_16_BIT or dtype in FLOATS_16_BIT) and "float32" not in (source, dtype):
            tensor = self.emit("CAST", [tensor], dtype="float32")
        return self.emit("CAST", [tensor], dtype=dtype)

    def reshape(self, tensor: str, shape: Sequence[int]) -> str:
        """Reshape ``tensor`` (no -1); nothing is emitted if it has the shape already."""
        shape = tuple(shape)
        if self.shape(tensor) == shape:
            return tensor
        return self.emit("RESHAPE", [tensor], shape=shape)

    def at_least_1d(self, tensor: str) -> str:
        """Return ``tensor``; a scalar becomes a vector of one element."""
        return self.reshape(tensor, self.shape(tensor) or (1,))

    def flat(self, tensor: str) -> str:
        """Return the elements of ``tensor`` as a vector."""
        return self.reshape(tensor, (self.type(tensor).size,))

    def expand(self, tensor: str, shape: Sequence[int]) -> str:
        """Broadcast ``tensor`` to the shape; nothing is emitted if it has the shape already."""
        shape = tuple(shape)
        return tensor if self.shape(tensor) == shape else self.emit("EXPAND", [tensor], shape=shape)

    def permute(self, tensor: str, axes: Sequence[int]) -> str:
        """Permute the axes, by TRANSPOSE if exactly two are swapped."""
        moved = [axis for axis, source in enumerate(axes) if axis != source]
        if not moved:
            return tensor
        if len(moved) == 2:
            return self.emit("TRANSPOSE", [tensor], axis0=moved[0], axis1=moved[1])
        return self.emit("PERMUTE", [tensor], axes=tuple(axes))

    def slice(self, tensor: str, axis: int, start: int, stop: int, step: int = 1) -> str:
        """Slice one axis; nothing is emitted if that is the whole tensor."""
        if (start, stop, step) == (0, self.shape(tensor)[axis], 1):
            return tensor
        return self.emit("SLICE", [tensor], axis=axis, start=start, stop=stop, step=step)

    def range(self, tensor: str, axis: int, start: int | None, end: int | None) -> tuple[int, int]:
        """Resolve a Python slice of an axis: return its start, and its end."""
        size = self.shape(tensor)[axis]

        def within(place: int | None, default: int) -> int:
            if place is None:
                return default
            if is_static(place) and place == HIGH:  # torch's end of an axis of any size
                return size
            if place >= 0:
                return smallest(place, size)
            # perhaps the smallest int64: a sum with it need not fit int64
            if is_static(place) and -place >= bounds(size)[1]:
                return 0
            return largest(place + size, 0)

        first = within(start, 0)
        return first, largest(within(end, size), first)

    def apply(self, op: str, *operands: Operand, dtype: str) -> str:
        """Emit an elementwise op on operands of which one may be a number.

        As in torch, integers must not be divided by 0: if the divisor may be 0, the run checks it.

        Parameters
        ----------
        op : str
        *operands : str or number
            The operands in the op's order.
        dtype : str
            The dtype of the computation. Tensors are cast and the number is converted to it, except
            a bool condition of WHERE.
        """
        if is_complex(dtype):
            return complex_ops.apply(self, op, operands, dtype)
        tensors = []
        attrs: dict[str, Any] = {}
        is_checked = op in DIVISIONS and dtype in INTS and not _is_never_0(operands[1])
        if is_checked and isinstance(operands[1], str):
            operands = (operands[0], self.if_taken(operands[1], 1))
        for index, operand in enumerate(operands):
            if isinstance(operand, str):
                is_condition = op == "WHERE" and index == 0
                tensors.append(self.cast(operand, "bool" if is_condition else dtype))
            elif isinstance(operand, Size):
                tensors.append(self.size_value(operand, dtype))
            elif attrs or len(operands) == 1:
                tensors.append(self.full((), operand, dtype))
            else:
                attrs = {"scalar": convert_number(operand, dtype), "scalar_index": index}
        if is_checked:
            attrs["by_zero"] = False
        return self.emit(op, tensors, **attrs)

    def result_dtype(self, *operands: Operand) -> str:
        """Return the dtype of torch's type promotion for two operands."""
        tensors: list[str] = []
        scalars: list[str] = []
        numbers: list[str] = []
        for x in operands:
            if isinstance(x, str):
                (tensors if self.rank(x) else scalars).append(self.dtype(x))
            else:
                numbers.append(number_dtype(x, self.sizes.default_float))
        return result_dtype(tensors, scalars, numbers)

    def compute(self) -> str:
        """Add the result of an op of numbers only, as torch computes it."""
        if self.node.compute is None:
            self.unsupported("torch computes it, which is not installed")
        args, kwargs = replaced((self.node.args, self.node.kwargs), self._number)
        (type_,) = self._outputs
        assert type_ is not None
        return self.constant(self.node.compute(*args, **kwargs), type_.dtype)

    def _number(self, node: Node) -> int:
        """Return a size that torch computes, which must be the same for all sizes in range."""
        value = node.value
        is_int = isinstance(value, SymbolicNumber) and value.kind == "int"
        size = self.sizes.convert(value.expr) if is_int else None
        if type(size) is not int:
            self.unsupported("its result depends on the inputs' sizes", "dynamic shape")
        return size

    def unsupported(self, reason: str, category: str = "op") -> NoReturn:
        """Refuse the node.

        Parameters
        ----------
        reason : str
            The reason, with the expected and the actual value.
        category : str
            One of :data:`taper_frontend.errors.CATEGORIES`.
        """
        raise Refusal(reason, category)

    # -- for the walk -----------------------------------------------------------------------------

    def begin(
        self, node: Node, outputs: Sequence[TensorType | None], source: str, target: str = ""
    ) -> None:
        """Start on a node, which is a part of a call of ``target``."""
        self.node = node
        self._name = self._prefix + node.name
        self._source = SourceLine(source, (target,))
        self._outputs = tuple(outputs)
        self._emitted = {}
        self._wide = False
        self._before = self.generator

    def widen(self) -> bool:
        """Restart the node, to be lowered with halves as float32.

        This is for ops whose type rules refuse halves, which are only stored and moved. The handler
        is called again and sees float32 in place of every half; its results are rounded.

        Returns
        -------
        bool
            False if that does not help: it was done already, or the node has no halves.
        """
        tensors = tensors_of([self.node, *self.node.all_input_nodes])
        dtypes = {tensor.dtype for tensor in tensors if not tensor.refused}
        if self._wide or all(computed(dtype) == dtype for dtype in dtypes):
            return False
        for name in reversed(self._emitted):
            if (node := self.graph.producers.get(name)) is not None:
                self.graph.remove_node(node)
            # not another output of a node that was removed already
            elif name in self.graph.tensors:
                self.graph.remove_tensor(name)
        self._emitted = {}
        self._wide = True
        self.generator = self._before
        return True

    def tensor_argument(self, tensor: str) -> str:
        """Return a tensor in the form that the handler sees."""
        return self.cast(tensor, computed(self.dtype(tensor))) if self._wide else tensor

    def dtype_argument(self, dtype: str) -> str:
        """Return a dtype in the form that the handler sees."""
        return computed(dtype) if self._wide else dtype

    def finish(self, results: Sequence[str | None]) -> list[str | None]:
        """Name the results after the node; those that existed before keep their names."""
        if self._wide:
            results = [
                result if result is None or expected is None else self.cast(result, expected.dtype)
                for result, expected in zip(results, self._outputs, strict=True)
            ]
        names: dict[str, str] = {}
        for index, result in enumerate(results):
            if result in self._emitted and result not in names and self._is_made(result):
                name = self._name if len(results) == 1 else f"{self._name}.{index}"
                names[result] = self._rename(result, name)
        self._emitted = dict.fromkeys(names.get(name, name) for name in self._emitted)
        return [r if r is None else type(r)(names.get(r, r)) for r in results]

    def made(self) -> list[GraphNode]:
        """Return the nodes that the current node has added to the graph."""
        producers = self.graph.producers
        return list({id(p): p for n in self._emitted if (p := producers.get(n))}.values())

    def _check_not_empty(self, outputs: Sequence[str]) -> None:
        for size in (size for output in outputs for size in self.shape(output)):
            # one that a node computes or another limits may reach 0 for sizes from 1 on
            may_be_0 = any(a.args or a.text in self.sizes.measured for a in variables(size))
            least = 0 if may_be_0 else 1
            if isinstance(size, Size) and bounds(size)[0] < least:
                raise UndecidedError(f"whether {size} is 0 depends on the inputs' sizes", size)

    def _is_made(self, tensor: str | None) -> bool:
        return tensor is not None and tensor in self.graph.producers

    def _rename(self, tensor: str, name: str) -> str:
        node = self.graph.producers.get(tensor)
        assert node is not None
        if len(node.outputs) > 1 or node.blocks:
            name = self.graph.unique_name(name)
            self.graph.rename({tensor: name})
            return name
        named = self.graph.add_node(node.op, node.inputs, node.attrs, name=name, source=node.source)
        self.graph.replace_uses(tensor, named)
        self.graph.remove_node(node)
        return named


def _is_never_0(divisor: Operand) -> bool:
    """Return whether a number, or a size for all inputs, is never 0."""
    if not isinstance(divisor, int):
        return False
    low, high = bounds(divisor)
    return low > 0 or high < 0


def convert_number(value: float, dtype: str) -> int | float | bool:
    """Convert ``value`` to the Python number of an element of ``dtype``."""
    if dtype == "bool":
        return bool(value)
    return int(value) if "int" in dtype else float(value)
