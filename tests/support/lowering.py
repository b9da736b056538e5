"""Lower small models and compare what their graphs mean with what torch computes."""

from __future__ import annotations

import torch

from taper_frontend.capture.capture import capture
from taper_frontend.capture.read_exported import read_program
from taper_frontend.capture.tensors import to_numpy
from taper_frontend.compiler.graph import evaluate
from taper_frontend.lowering import lower

torch.set_num_threads(1)


class Call(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def lower_model(model, *args, **kwargs):
    """Capture and lower a module or a function."""
    module = model if isinstance(model, torch.nn.Module) else Call(model)
    return lower(read_program(capture(module, args, kwargs)))


def tensors_in(values):
    return [x for x in torch.utils._pytree.tree_leaves(values) if isinstance(x, torch.Tensor)]


def evaluate_graph(graph, tensors):
    """Outputs of ``graph``, then its states' next values, for inputs and states in order."""
    inputs = {name: to_numpy(x) for name, x in zip(graph.reads, tensors, strict=True)}
    results = evaluate(graph, inputs)
    return [torch.from_numpy(results[name].copy()) for name in graph.writes]


def check_lowering(model, *args, rtol=None, atol=None, **kwargs):
    """Compare the lowered graph's outputs with the model's; return the graph."""
    graph = lower_model(model, *args, **kwargs).graph
    graph.verify()
    got = evaluate_graph(graph, tensors_in([args, kwargs]))
    with torch.no_grad():
        want = tensors_in(model(*args, **kwargs))
    assert len(got) == len(want)
    for mine, torchs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, torchs, rtol=rtol, atol=atol, equal_nan=True)
    return graph


def ops_of(graph):
    return [node.op for node in graph.order()]


def nodes_behind(graph, output):
    """Nodes that ``output`` depends on, in order."""
    wanted = {output}
    for node in reversed(graph.order()):
        if node.output in wanted:
            wanted.update(node.inputs)
    return [node for node in graph.order() if node.output in wanted]


def check_each(cases, *args):
    """Compare functions of one tensor each, captured together; yield case and nodes."""
    graph = check_lowering(lambda *args: [function(*args) for function, *_ in cases], *args)
    for case, output in zip(cases, graph.outputs, strict=True):
        yield case, nodes_behind(graph, output)
