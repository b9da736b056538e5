"""Nodes that keep the items of a batch apart: each op's samples, computed item by item."""

import pytest

from graph_checks import assert_same_values
from op_samples import SAMPLED, samples_of
from taper_frontend.compiler.analysis.batch import BatchAxes
from taper_frontend.compiler.graph import Graph, evaluate
from taper_frontend.compiler.stages.schedule.split_into_microbatches import split_nodes
from taper_runtime.base.dtypes import DTYPES

NAMES = {dtype.storage: name for name, dtype in DTYPES.items()}

#: Ops that keep no items apart along axis 0.
WHOLE = {
    *("ARANGE", "RANDOM", "RANDOM_NEXT"),
    *("EMBEDDING_BAG", "GROUPED_MATMUL"),  # whose rows belong to bags, matrices by their positions
    *("GRU", "LSTM", "RNN"),  # whose first axis is time
    "MATRIX_EXP",
    "NMS",  # which compares its boxes
    *("EIG", "EIGH", "LU", "NONZERO", "QR", "SLOGDET", "SVD"),  # of several outputs
    *("COMPLEX_EIG", "COMPLEX_EIGH", "COMPLEX_LU", "COMPLEX_QR", "COMPLEX_SLOGDET", "COMPLEX_SVD"),
    "COMPLEX_MATRIX_EXP",
    *("PACK", "UNPACK"),
}

#: Once this many graphs of an op were split, a third of the others is.
FEW = 16


def graphs(op):
    """For each sample, graphs of one node with every choice of what is an input."""
    for sample in samples_of(op):
        if sample.formats:  # of constants alone
            continue
        count = len(sample.inputs)
        for chosen in range(1, 1 << min(count, 3)):
            graph, names, feed = Graph(), [], {}
            for index, array in enumerate(sample.inputs):
                if array is None:
                    names.append(None)
                    continue
                dtype = NAMES[array.dtype]
                if chosen >> index & 1:
                    names.append(graph.add_input("x", dtype, array.shape))
                    feed[names[-1]] = array
                else:
                    names.append(graph.add_constant("c", array, dtype))
            graph.set_outputs(graph.add_multi_output(op, names, sample.attrs))
            yield graph, feed


@pytest.mark.parametrize("op", sorted(op.name for op in SAMPLED))
def test_items_apart_are_those_of_all(op):
    split = 0
    for graph, feed in graphs(op):
        batch = BatchAxes(graph)
        (node,) = graph.order()
        if not batch.items or not batch.keeps_apart(node):
            continue
        split += 1
        if split <= FEW or split % 3 == 0:
            want = evaluate(graph, feed)
            split_nodes(graph, batch, [node], min(batch.items, 3))
            graph.verify()
            assert_same_values(evaluate(graph, feed), want)
    assert bool(split) == (op not in WHOLE)
