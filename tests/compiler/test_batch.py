"""Which nodes keep the images of a batch apart: each op's samples, computed image by image."""

import pytest

from graph_checks import assert_same_values
from taper_frontend.compiler.analysis.batch import Batch
from taper_frontend.compiler.graph import Graph, evaluate
from taper_frontend.compiler.stages.schedule.split_batch import split_nodes
from taper_runtime.dtypes import DTYPES
from taper_runtime.ops import REGISTRY

NAMES = {dtype.storage: name for name, dtype in DTYPES.items()}

#: Ops that keep no images apart, or that no model has enough of to be split.
WHOLE = {
    "ARANGE", "GATHER", "GROUPED_MATMUL", "GRU", "LSTM", "RNN", "SCATTER", "SEARCHSORTED",
    "CUMARGMAX", "CUMARGMIN", "LOGCUMSUMEXP", "DIGAMMA", "ERFINV", "GCD", "HYPOT", "I0",
    "LEFT_SHIFT", "LGAMMA", "NEXTAFTER", "RIGHT_SHIFT", "RANDOM", "RANDOM_NEXT",
    "CHOLESKY", "CHOLESKY_INFO", "DET", "EIGH", "INVERSE", "LU", "MATRIX_EXP", "QR", "SLOGDET",
    "SOLVE", "SOLVE_TRIANGULAR", "SVD", "PACK", "UNPACK",
}  # fmt: skip


def graphs(op):
    """For each sample, graphs of one node with every choice of what is an input."""
    for sample in REGISTRY[op].samples():
        if sample.formats:  # of constants alone
            continue
        count = len(sample.inputs)
        for chosen in range(1, 1 << min(count, 3)):
            graph, names, feed = Graph(), [], {}
            for index, array in enumerate(sample.inputs):
                dtype = NAMES[array.dtype]
                if chosen >> index & 1:
                    names.append(graph.add_input("x", dtype, array.shape))
                    feed[names[-1]] = array
                else:
                    names.append(graph.add_constant("c", array, dtype))
            graph.set_outputs([graph.add_node(op, names, sample.attrs)])
            yield graph, feed


@pytest.mark.parametrize("op", sorted(REGISTRY))
def test_images_apart_are_those_of_all(op):
    split = 0
    for graph, feed in graphs(op):
        batch = Batch(graph)
        (node,) = graph.order()
        if batch.images and batch.keeps_apart(node):
            want = evaluate(graph, feed)
            split_nodes(graph, batch, [node], min(batch.images, 3))
            graph.verify()
            assert_same_values(evaluate(graph, feed), want)
            split += 1
    assert bool(split) == (op not in WHOLE)
