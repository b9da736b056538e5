"""Capture: what goes in, how it nests, what is left as it was."""

from __future__ import annotations

import collections
import io

import pytest
import torch

from lowering import Call, check_lowering, evaluate_graph, lower_model, ops_of, tensors_in
from taper_frontend import export
from taper_frontend.capture.capture import capture
from taper_frontend.capture.read_exported import read_program
from taper_frontend.errors import ExportError
from taper_frontend.lowering import lower

X = torch.linspace(-2, 2, 12).reshape(3, 4)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 5)
        self.second = torch.nn.Linear(5, 4, bias=False)
        self.second.weight = torch.nn.Parameter(self.first.weight.detach().t().contiguous())
        self.unused = torch.nn.Linear(3, 3)
        self.register_buffer("shift", torch.tensor([1.0, 2.0, 3.0, 4.0]))
        self.register_buffer("scratch", torch.tensor(0.5), persistent=False)

    def forward(self, x):
        offset = torch.tensor([0.25, 0.5, 0.75, 1.0])
        return self.second(self.first(x).relu()) * self.scratch + self.shift + offset


def test_constants_have_state_dict_names_and_only_used_ones_are_kept():
    graph = check_lowering(Net().eval(), X)
    names = set(graph.constants)
    assert {"first.weight", "first.bias", "second.weight", "shift", "scratch"} <= names
    assert not any(name.startswith("unused") for name in names)
    assert graph.inputs == ["x"]


def test_tied_parameters_are_one_constant():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(7, 4)
            self.head = torch.nn.Linear(4, 7, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids):
            return self.head(self.embed(ids))

    graph = check_lowering(Tied().eval(), torch.tensor([[1, 6, 0]]))
    assert len(graph.constants) == 1


def test_a_plan_does_not_share_memory_with_the_module():
    net = Net().eval()
    plan = export(net, (X,), passes=())
    before = plan.constants["first.weight"].copy()
    with torch.no_grad():
        net.first.weight.zero_()
    assert before.any()
    assert (plan.constants["first.weight"] == before).all()


def test_module_is_left_as_it_was():
    net = Net().train()
    net.second.eval()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    attributes = set(vars(net))
    lower_model(net, X)
    assert net.training
    assert not net.second.training
    assert net.first.weight.requires_grad
    assert net.first.weight.grad is None
    assert set(vars(net)) == attributes
    assert torch.is_grad_enabled()
    for name, value in net.state_dict().items():
        assert torch.equal(value, state[name])


def test_arguments_that_share_memory():
    check_lowering(lambda x, y, z: x + y + z, X, X[:, :1], X)


def test_nested_arguments_come_flat_in_the_order_of_the_signature():
    def model(pair, *, extra):
        return pair[0] + extra["a"][0], pair[1] * extra["b"]

    args = ((X, X + 1),)
    kwargs = {"extra": {"b": X + 2, "a": [X + 3]}}
    lowered = lower_model(model, *args, **kwargs)
    graph = lowered.graph
    assert [graph.tensors[name].shape for name in graph.inputs] == [(3, 4)] * 4
    pair, extra = lowered.input_tree[1]
    first, second, b, a = (["tensor", name] for name in graph.inputs)
    assert pair == ["tuple", [["tuple", [first, second]]]]
    assert extra == ["dict", [["extra", ["dict", [["b", b], ["a", ["list", [a]]]]]]]]
    got = evaluate_graph(graph, [X, X + 1, X + 2, X + 3])
    for mine, torchs in zip(got, tensors_in(model(*args, **kwargs)), strict=True):
        torch.testing.assert_close(mine, torchs)


def test_values_that_are_not_tensors_are_baked_in():
    def model(x, power, flag, name, nothing=None):
        y = x**power if flag else x
        return y + 1 if name == "plus" and nothing is None else y

    lowered = lower_model(model, X, 3, True, "plus", None)
    assert len(lowered.graph.inputs) == 1
    positional, _ = lowered.input_tree[1]
    assert positional[1][1:] == [["value", 3], ["value", True], ["value", "plus"], ["value", None]]
    (got,) = evaluate_graph(lowered.graph, [X])
    torch.testing.assert_close(got, X**3 + 1)


def test_unused_input_stays_an_input():
    lowered = lower_model(lambda x, y: x + 1, X, X)
    assert len(lowered.graph.inputs) == 2


def test_outputs_that_nest():
    Point = collections.namedtuple("Point", "x y")

    def model(x):
        return {"a": [x + 1, None], "b": (Point(x + 2, 7), "text")}

    lowered = lower_model(model, X)
    names = lowered.graph.outputs
    fields = [["x", ["tensor", names[1]]], ["y", ["value", 7]]]
    assert lowered.output_tree == [
        "dict",
        [
            ["a", ["list", [["tensor", names[0]], ["value", None]]]],
            ["b", ["tuple", [["namedtuple", ["Point", fields]], ["value", "text"]]]],
        ],
    ]


def test_output_that_is_an_input_a_parameter_a_constant_or_given_twice():
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))

        def forward(self, x):
            y = x + 1
            return x, self.weight, torch.arange(3), y, y, 5, None

    odd = Odd()
    graph = check_lowering(odd, X)
    assert len(graph.outputs) == 5
    assert graph.outputs[0] == graph.inputs[0]
    assert graph.outputs[1] == "weight"
    assert graph.outputs[3] == graph.outputs[4]


def test_unused_results_of_multi_output_ops():
    check_lowering(lambda x: x.max(1).values, X)
    check_lowering(lambda x: x.split(1, 0)[1], X)


def test_program_and_file_give_the_same_graph():
    net = Net().eval()
    program = torch.export.export(net, (X,))
    file = io.BytesIO()
    torch.export.save(program, file)
    want = str(lower_model(net, X).graph)
    assert str(lower(read_program(capture(program))).graph) == want


def test_pt2_file(tmp_path):
    net = Net().eval()
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(net, (X,)), path)
    for given in (path, str(path)):
        graph = lower(read_program(capture(given))).graph
        (got,) = evaluate_graph(graph, [X])
        torch.testing.assert_close(got, net(X).detach())


def test_program_exported_with_gradients_and_a_no_grad_block():
    class Partly(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            with torch.no_grad():
                y = self.linear(x)
            return y * x

    net = Partly().eval()
    graph = lower(read_program(capture(torch.export.export(net, (X,))))).graph
    (got,) = evaluate_graph(graph, [X])
    torch.testing.assert_close(got, net(X).detach())


def test_in_place_and_out_become_functions():
    def model(x):
        y = x.clone()
        y.add_(1).mul_(2)
        y[:, 1:3] = 0.5
        y[y < 0] = 0
        y[0].relu_()
        return torch.sin(y, out=torch.empty_like(y))

    check_lowering(model, X)


def test_composites_with_a_handler_are_kept_whole():
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.LayerNorm(2), torch.nn.SiLU())
    ops = ops_of(check_lowering(model.eval(), X))
    assert ops == ["TRANSPOSE", "MATMUL", "ADD", "LAYER_NORM", "SILU"]


@pytest.mark.parametrize("model", [3, None, lambda x: x])
def test_other_things_are_refused(model):
    with pytest.raises(ExportError, match=r"expected a torch\.nn\.Module"):
        capture(model, (X,))


def test_missing_and_broken_files_are_refused(tmp_path):
    broken = tmp_path / "broken.pt2"
    broken.write_bytes(b"not a program")
    for path in (broken, tmp_path / "missing.pt2"):
        with pytest.raises(ExportError, match=f"could not read '.*{path.name}'"):
            capture(path)


def test_wrong_arguments_are_an_export_error():
    with pytest.raises(ExportError, match="could not capture the module"):
        capture(Call(lambda x: x), ())


def test_the_module_is_named_where_no_line_is_the_users():
    inner = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(7, 4))
    with pytest.raises(ExportError, match=r"\n  at 1\.1 \(Linear\)$"):
        capture(torch.nn.Sequential(torch.nn.ReLU(), inner), (torch.ones(2, 8),))


def test_a_dim_that_would_be_one_inside():
    layer = torch.nn.Conv2d(3, 3, 3, 2, 1)
    model = torch.nn.Sequential(layer, layer, layer, layer)
    args = (torch.ones(1, 3, 64, 64),)
    with pytest.raises(ExportError, match="give the Dim a larger min"):
        capture(model, args, dynamic_shapes=({2: torch.export.Dim("h", min=8)},))
    capture(model, args, dynamic_shapes=({2: torch.export.Dim("h", min=17)},))


def test_dynamic_shapes_are_for_modules():
    program = torch.export.export(Call(lambda x: x + 1), (X,))
    with pytest.raises(ExportError, match="dynamic_shapes"):
        capture(program, dynamic_shapes={"x": {0: torch.export.Dim("n")}})
