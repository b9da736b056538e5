"""Compile subgraphs of elementwise ops to a shared library: the backend "c".

:class:`taper_runtime.extend.c_delegate.CDelegate` runs it; the library is the blob.
"""

from __future__ import annotations

import math
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from taper_frontend.errors import CannotDelegate

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

#: The name of the function that a library exports:
#: ``void taper_subgraph(const float *const *inputs, float *const *outputs, const int64_t *sizes)``.
#: ``sizes`` has the rank of each input and its dims, then those of the outputs.
FUNCTION = "taper_subgraph"

#: The C expression of each op, for float operands.
EXPRESSIONS = {
    "NEG": "-{0}",
    "ABS": "fabsf({0})",
    "SQRT": "sqrtf({0})",
    "RECIPROCAL": "1.0f / {0}",
    "EXP": "expf({0})",
    "LOG": "logf({0})",
    "SIN": "sinf({0})",
    "COS": "cosf({0})",
    "TANH": "tanhf({0})",
    "ERF": "erff({0})",
    "RELU": "({0} > 0.0f || {0} != {0} ? {0} : 0.0f)",
    "SIGMOID": "1.0f / (1.0f + expf(-{0}))",
    "SILU": "{0} / (1.0f + expf(-{0}))",
    "SQUARE": "{0} * {0}",
    "ADD": "{0} + {1}",
    "SUB": "{0} - {1}",
    "MUL": "{0} * {1}",
    "DIV": "{0} / {1}",
}

_COMPILE = ("cc", "-std=gnu11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC")


def elementwise_subgraphs(graph: Graph) -> list[list[str]]:
    """Return the largest subgraphs of at least two nodes that the backend "c" supports.

    Nodes of a subgraph are consecutive in the graph's order, apart from nodes of other subgraphs,
    so that each subgraph can run as one node.
    """
    subgraphs: list[list[str]] = []
    open_: list[str] = []
    made: set[str] = set()
    for node in graph.order():
        if _is_taken(graph, node) and (not open_ or made.intersection(node.reads)):
            open_.append(node.output)
            made.add(node.output)
            continue
        subgraphs.append(open_)
        open_, made = ([node.output], {node.output}) if _is_taken(graph, node) else ([], set())
    return [subgraph for subgraph in [*subgraphs, open_] if len(subgraph) > 1]


def compile_subgraph(graph: Graph) -> bytes:
    """Return a library that computes a subgraph.

    Raises
    ------
    CannotDelegate
        If the subgraph has an unsupported op or dtype, or outputs of several shapes; or if there is
        no compiler, or it fails.
    """
    source = write_c(graph)
    with tempfile.TemporaryDirectory(prefix="taper-") as folder:
        path, library = Path(folder, "subgraph.c"), Path(folder, "subgraph.so")
        path.write_text(source)
        command = [*_COMPILE, str(path), "-o", str(library), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise CannotDelegate(
                f"expected the compiler {command[0]}, got {error.strerror}"
            ) from error
        if done.returncode:
            raise CannotDelegate(f"{command[0]} failed: {done.stderr.strip()[:200]}")
        return library.read_bytes()


def write_c(graph: Graph) -> str:
    """Return the C code of a subgraph: a loop over the elements.

    Raises
    ------
    CannotDelegate
        If the subgraph is not supported; see :func:`compile_subgraph`.
    """
    shapes = {graph.tensors[name].shape for name in graph.outputs}
    if len(shapes) != 1:
        raise CannotDelegate(f"expected outputs of one shape, got {sorted(map(str, shapes))}")
    (shape,) = shapes
    for node in graph.order():
        _check(graph, node, shape)
    rank, n_inputs = len(shape), len(graph.inputs)
    values: dict[str, str] = {}
    lines = []
    for i, name in enumerate(graph.inputs):
        lines.append(f"const float x{i} = inputs[{i}][at[{i}]];")
        values[name] = f"x{i}"
    for number, node in enumerate(graph.order()):
        operands = [
            values[each] if isinstance(each, str) else _number(each) for each in node.operands()
        ]
        values[node.output] = f"v{number}"
        lines.append(f"const float v{number} = {EXPRESSIONS[node.op].format(*operands)};")
    for i, name in enumerate(graph.outputs):
        lines.append(f"outputs[{i}][e] = {values[name]};")
    body = "\n        ".join(lines)
    return _TEMPLATE.format(
        function=FUNCTION, n=max(n_inputs, 1), inputs=n_inputs, rank=max(rank, 1), body=body
    )


def _number(value: float) -> str:
    """Return a number as C."""
    value = float(value)
    if math.isfinite(value):
        return f"({value!r}f)"
    return "NAN" if math.isnan(value) else f"({'-' if value < 0 else ''}INFINITY)"


#: Broadcast inputs have stride 0; the index runs through the output's dims.
_TEMPLATE = """\
#include <math.h>
#include <stdint.h>

enum {{ N = {n}, INPUTS = {inputs}, RANK = {rank} }};

void {function}(const float *const *inputs, float *const *outputs, const int64_t *sizes) {{
    int64_t stride[N][RANK] = {{0}}, at[N] = {{0}}, place[RANK] = {{0}}, shape[RANK], count = 1;
    const int64_t *size = sizes;
    for (int i = 0; i < INPUTS; i++) {{
        const int64_t rank = *size++;
        int64_t step = 1;
        for (int64_t k = rank - 1; k >= 0; k--) {{
            stride[i][RANK - rank + k] = size[k] == 1 ? 0 : step;
            step *= size[k];
        }}
        size += rank;
    }}
    for (int k = 0; k < RANK; k++)
        shape[k] = 1;
    const int64_t rank = *size++;
    for (int64_t k = 0; k < rank; k++)
        count *= shape[RANK - rank + k] = size[k];
    for (int64_t e = 0; e < count; e++) {{
        {body}
        for (int k = RANK - 1; k >= 0; k--) {{
            place[k]++;
            for (int i = 0; i < INPUTS; i++)
                at[i] += stride[i][k];
            if (place[k] < shape[k])
                break;
            for (int i = 0; i < INPUTS; i++)
                at[i] -= stride[i][k] * shape[k];
            place[k] = 0;
        }}
    }}
}}
"""


def _is_taken(graph: Graph, node: Node) -> bool:
    try:
        _check(graph, node, None)
    except CannotDelegate:
        return False
    return True


def _check(graph: Graph, node: Node, shape: tuple[int, ...] | None) -> None:
    """Check that a node can be written as C, in a subgraph whose outputs have this shape."""
    if node.op not in EXPRESSIONS:
        raise CannotDelegate(f"expected ops among {', '.join(EXPRESSIONS)}, got {node.op}")
    names: Iterable[str] = (*node.reads, *node.outputs)
    for name in names:
        if graph.tensors[name].dtype != "float32" or graph.tensors[name].format != "plain":
            raise CannotDelegate(f"expected plain float32, got {graph.tensors[name].type}")
    if shape is not None and len(graph.tensors[node.output].shape) > len(shape):
        raise CannotDelegate(f"expected tensors that broadcast to {shape}")
