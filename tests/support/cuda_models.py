"""Graphs of products for the example delegate "cuda", and their plans."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from cuda_delegate.subgraphs import cuda_subgraphs
from graph_checks import Builder
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.partition import Partition
from taper_frontend.compiler.planning import make_plan
from taper_runtime import SessionOptions
from taper_runtime.plan.replaceable import WeightSpec
from weighted_plans import weight

if TYPE_CHECKING:
    from collections.abc import Callable

    from taper_frontend.compiler.graph import Graph
    from taper_runtime.plan.plan import Plan

#: What may follow a product of [m, n]: functions of a builder, the product, m and n.
EPILOGUES: dict[str, Callable[[Builder, str, int, int], str]] = {
    "none": lambda b, x, m, n: x,
    "relu": lambda b, x, m, n: b.op("RELU", x),
    "row": lambda b, x, m, n: b.op("ADD", x, b.weight(n, seed=2)),
    "row_relu": lambda b, x, m, n: b.op("RELU", b.op("ADD", b.weight(n, seed=2), x)),
    "matrix": lambda b, x, m, n: b.op("ADD", x, b.input("z", m, n)),
    "matrix_relu": lambda b, x, m, n: b.op("RELU", b.op("ADD", b.input("z", m, n), x)),
    "scalar": lambda b, x, m, n: b.op("ADD", x, b.input("z", 1)),
    "scalar_relu": lambda b, x, m, n: b.op("RELU", b.op("ADD", b.input("z", 1), x)),
    "number_relu": lambda b, x, m, n: b.op("RELU", b.op("ADD", -0.25, x)),
    "given_row": lambda b, x, m, n: b.op("ADD", b.op("RELU", x), b.input("z", 1, n)),
    "two_sums": lambda b, x, m, n: b.op(
        "ADD", b.op("RELU", b.op("ADD", x, b.weight(n, seed=2))), b.input("z", m, n)
    ),
    "twice": lambda b, x, m, n: b.op("ADD", x, x),
    "both": lambda b, x, m, n: b.op("ADD", b.op("RELU", x), x),
}


def product_graph(m: int, k: int, n: int, epilogue: str = "row_relu", **attrs: Any) -> Graph:
    """``x [m, k] @ w [k, n]`` (``w.T`` of [n, k] if transposed), then an epilogue."""
    b = Builder()
    shape = (n, k) if attrs.get("transpose_b") else (k, n)
    product = b.op("MATMUL", b.input("x", m, k), b.weight(*shape), **attrs)
    return b.done(EPILOGUES[epilogue](b, product, m, n))


def chain_graph(rows: int = 5, widths: tuple[int, ...] = (8, 16, 7, 3)) -> Graph:
    """Layers of ``relu(x @ w.T + bias)``, and a product of the last two results of them."""
    b = Builder()
    x = b.input("x", rows, widths[0])
    made = []
    for number, (k, n) in enumerate(itertools.pairwise(widths)):
        product = b.op(
            "MATMUL", x, b.weight(n, k, seed=number, name=f"w{number}"), transpose_b=True
        )
        x = b.op("RELU", b.op("ADD", product, b.weight(n, seed=9, name=f"b{number}")))
        made.append(x)
    square = b.op("MATMUL", made[-1], b.input("y", widths[-1], rows))
    return b.done(b.op("ADD", square, b.op("MATMUL", square, square)), made[-2])


def delegated(graph: Graph) -> tuple[Plan, Partition]:
    """Compile a graph with the backend "cuda"; return the plan, and the pass that asked it."""
    partition = Partition(cuda_subgraphs, "cuda")
    compile_graph(graph, partition=partition, verify=True)
    return make_plan(graph), partition


def replaceable(plan: Plan, *names: str) -> Plan:
    """A plan whose constants of these names can be replaced."""
    shapes = {name: plan.constants[name].shape for name in names}
    return plan._replace(
        weights={name: WeightSpec(name, "parameter", "float32", shapes[name]) for name in names},
        derived={name: (weight(name),) for name in names},
    )


def options(delegate: Any, policy: str = "error") -> SessionOptions:
    """Options of a session with this class for the backend "cuda"."""
    made = SessionOptions()
    made.delegates, made.on_delegate_failure = {"cuda": delegate}, policy
    return made
