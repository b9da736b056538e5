"""Models whose sizes values decide: exported, run for many values, compared with torch."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

import taper_frontend
import taper_runtime
import vision_ops
from function_module import Function
from marks import thinned
from taper_frontend.errors import ExportError, UnsupportedNodesError
from taper_runtime.base.errors import InputError

torch.set_num_threads(1)


def put_by_mask(x, mask):
    y = x.clone()
    y[mask] = torch.relu(y[mask]) + 1
    return y


def top_p(logits):
    p, order = torch.softmax(logits, -1).sort(descending=True)
    kept = (p.cumsum(0) - p) < 0.9
    return order[kept], p[kept] / p[kept].sum()


def top_p_by_number(logits):
    p, order = torch.softmax(logits, -1).sort(descending=True)
    n = ((p.cumsum(0) - p) < 0.9).sum().item()
    torch._check(n >= 1)
    torch._check(n <= p.shape[0])
    return order[:n], p[:n]


def first_rows(x, n):
    count = n.item()
    torch._check(count >= 0)
    torch._check(count <= x.shape[0])
    return x[:count] * 2, x[count:], x.narrow(0, 0, count).sum(0)


def any_first_rows(x, n):
    return x[: n.item()] * 2


def one_row(x, n):
    return x[n.item()] + n.item()


def shares(x, n):
    """Work on each part, then put the parts together: experts, each with rows of its own."""
    parts = x.split(n.tolist())
    return *parts, torch.cat([part * (i + 1) for i, part in enumerate(parts)])


def slices(x, n):
    first, second, third = n.tolist()
    for size in (first, second, third):
        torch._check(size >= 0)
    torch._check(first + second + third <= x.shape[0])
    end = first + second
    return x[:first] * 2, x[first:end] + 1, x.narrow(0, end, third), x[end + third :]


def between_ends(x, n):
    """Take the parts between ends that rise."""
    ends = n.cumsum(0).tolist()
    torch._check(ends[0] >= 0)
    for end, following in itertools.pairwise(ends):
        torch._check(end <= following)
    torch._check(ends[-1] <= x.shape[0])
    return [x[begin:end] * 2 for begin, end in itertools.pairwise([0, *ends])]


def routed(x, router):
    """Sort the rows by their expert, and give each expert its share, as JetMoE does."""
    expert = (x @ router).argmax(-1)
    order = expert.argsort(stable=True)
    counts = F.one_hot(expert, router.shape[1]).sum(0).tolist()
    shares = x[order].split(counts)
    done = torch.cat([F.gelu(rows) * (i + 1) for i, rows in enumerate(shares)])
    return torch.zeros_like(x).index_add(0, order, done)


def counts_of(total, parts):
    """Return how many elements each part has, some of them none."""
    return torch.bincount(torch.randint(0, parts, (total,)), minlength=parts)


def made(n):
    rows, columns = n.tolist()
    torch._check(rows >= 0)
    torch._check(columns >= 0)
    return torch.ones(rows, columns), torch.arange(rows), torch.full((2, columns), 3)


def nms(boxes, scores):
    """Suppression written in torch: the boxes that are kept, best first."""
    order = scores.argsort(descending=True, stable=True)
    boxes = boxes[order]
    corner, size = boxes[:, :2], boxes[:, 2:]
    end = corner + size
    low, high = torch.maximum(corner[:, None], corner), torch.minimum(end[:, None], end)
    shared = (high - low).clamp(min=0).prod(-1)
    area = size.prod(-1)
    overlaps = shared / (area[:, None] + area - shared) > 0.3
    keep = torch.ones(boxes.shape[0], dtype=torch.bool)
    later = torch.arange(boxes.shape[0])
    for i in range(boxes.shape[0]):
        keep = keep & ~(overlaps[i] & keep[i] & (later > i))
    return order[keep], boxes[keep]


def unique_all(x):
    return torch.unique(x, return_inverse=True, return_counts=True)


def unique_runs(x):
    return torch.unique_consecutive(x, return_inverse=True, return_counts=True)


def unique_rows(x):
    return torch.unique(x, dim=0, return_inverse=True, return_counts=True)


def chained(x):
    found = x[x > 0]
    large = found[found > 1]
    return large * 2, found.sum() + large.sum()


def pairs(x):
    found = x[x > 0]
    return found[:, None] * found


def pieces(x, mask):
    kept = x[mask]
    return F.layer_norm(kept, (kept.shape[1],)), kept @ x.T, torch.softmax(kept, 0)


def floats(*shape):
    return torch.randn(shape)


def mask(*shape):
    """A mask of a random share, none and all among them."""
    return torch.rand(shape) < torch.rand(()) * 1.6 - 0.3


def numbers(high, *shape):
    return torch.randint(0, high, shape)


#: Function, and what makes its arguments.
PROGRAMS = {
    "nonzero": (torch.nonzero, lambda: [mask(4, 5)]),
    "argwhere": (lambda x: torch.argwhere(x > 1), lambda: [floats(2, 3, 4)]),
    "nonzero as tuple": (lambda x: torch.nonzero(x, as_tuple=True), lambda: [mask(3, 4, 2)]),
    "where": (lambda x: x[torch.where(x > 0)] * 2, lambda: [floats(4, 5)]),
    "masked_select": (torch.masked_select, lambda: [floats(4, 5), mask(4, 1)]),
    "masked_select of what a mask repeats": (
        torch.masked_select, lambda: [floats(4, 1, 2), mask(5, 2)],
    ),
    "rows by mask": (lambda x, m: x[m] + 1, lambda: [floats(7, 3), mask(7)]),
    "columns by mask": (lambda x, m: x[:, m], lambda: [floats(2, 7, 3), mask(7)]),
    "elements by mask": (lambda x, m: x[m], lambda: [floats(4, 5, 2), mask(4, 5)]),
    "put by mask": (put_by_mask, lambda: [floats(7, 3), mask(7)]),
    "pieces": (pieces, lambda: [floats(7, 3), mask(7)]),
    "halves": (lambda x, m: x.half()[m].float(), lambda: [floats(7, 3), mask(7)]),
    "chained": (chained, lambda: [floats(30)]),
    "pairs": (pairs, lambda: [floats(9)]),
    "unique": (unique_all, lambda: [numbers(9, 4, 5)]),
    "unique floats": (torch.unique, lambda: [numbers(5, 12).float() / 2]),
    "unique runs": (unique_runs, lambda: [numbers(2, 15)]),
    "unique rows": (unique_rows, lambda: [numbers(2, 9, 3)]),
    "repeat_interleave": (
        lambda x, n: torch.repeat_interleave(x, n, dim=0), lambda: [floats(4, 3), numbers(4, 4)],
    ),
    "repeated places": (torch.repeat_interleave, lambda: [numbers(4, 6)]),
    "bincount": (torch.bincount, lambda: [numbers(9, 20)]),
    "weighted bincount": (
        lambda x, w: torch.bincount(x, w, minlength=12), lambda: [numbers(9, 20), floats(20)],
    ),
    "rows up to a number": (first_rows, lambda: [floats(6, 3), numbers(7)]),
    "rows up to any number": (any_first_rows, lambda: [floats(6, 3), numbers(20) - 10]),
    "rows from any number on": (
        lambda x, n: x[n[0].item() :: 2] * 2, lambda: [floats(6, 3), numbers(20, 1) - 10],
    ),
    "columns between numbers": (
        lambda x, n: x[:, n[0].item() : n[1].item()], lambda: [floats(2, 9), numbers(26, 2) - 13],
    ),
    "split at numbers": (torch.tensor_split, lambda: [floats(9, 2), numbers(26, 3) - 13]),
    "split at a constant": (
        lambda x: torch.tensor_split(x, torch.tensor([2, -4, 3]), 1), lambda: [floats(2, 9)],
    ),
    "one row": (one_row, lambda: [floats(6, 3), numbers(6) - 3]),
    "shares": (shares, lambda: [floats(12, 3), counts_of(12, 4)]),
    "many shares": (shares, lambda: [floats(30, 2), counts_of(30, 20)]),
    "shares of columns": (
        lambda x, n: [part.sum(1) for part in x.split(n.tolist(), 1)],
        lambda: [floats(3, 12), counts_of(12, 4)],
    ),
    "slices one after the other": (slices, lambda: [floats(12, 3), counts_of(12, 4)[:3]]),
    "rows between ends": (between_ends, lambda: [floats(12, 3), counts_of(12, 5)[:4]]),
    "rows of experts": (routed, lambda: [floats(12, 4), floats(4, 5)]),
    "tensors of sizes in a tensor": (made, lambda: [numbers(5, 2)]),
    "scaled by a number": (lambda x, s: x * s.item(), lambda: [floats(3), floats()]),
    "top-p": (top_p, lambda: [floats(50)]),
    "top-p by number": (top_p_by_number, lambda: [floats(50)]),
    "nms": (nms, lambda: [torch.rand(8, 4) + 0.2, torch.rand(8)]),
    "padded rows": (
        lambda x, n: x[torch.arange(5) < n[:, None]], lambda: [floats(3, 5, 2), numbers(6, 3)],
    ),
}  # fmt: skip


def compare(session, module, args):
    feed = {x.name: a.numpy() for x, a in zip(session.get_inputs(), args, strict=True)}
    with torch.no_grad():
        want = tree_leaves(module(*args))
    for got, expected in zip(session.run(None, feed), want, strict=True):
        assert got.dtype == expected.numpy().dtype
        np.testing.assert_allclose(got, expected.numpy(), rtol=1e-5, atol=1e-5)


def open_in(executor, plan):
    options = taper_runtime.SessionOptions()
    options.executor = executor
    return taper_runtime.InferenceSession(plan, options)


@pytest.mark.parametrize("name", thinned(2, PROGRAMS))
def test_program(name, tmp_path):
    function, arguments = PROGRAMS[name]
    torch.manual_seed(0)
    module = Function(function)
    taper_frontend.export(module, tuple(arguments())).save(tmp_path / "plan.taper")
    sessions = [open_in(name, tmp_path / "plan.taper") for name in ("compiled", "interpreted")]
    for _ in range(12):
        args = arguments()
        for session in sessions:
            compare(session, module, args)


@pytest.mark.parametrize("share", [0, 1])
def test_none_and_all(share):
    module = Function(pieces)
    session = open_in("compiled", taper_frontend.export(module, (floats(7, 3), mask(7))))
    compare(session, module, [floats(7, 3), torch.full((7,), bool(share))])


def test_places_in_a_tensor_without_elements():
    def places(x):
        return torch.nonzero(x), *torch.nonzero(x, as_tuple=True), torch.argwhere(x), x[x > 0]

    module = Function(places)
    session = open_in("compiled", taper_frontend.export(module, (floats(2, 0, 3),)))
    compare(session, module, [floats(2, 0, 3)])


def test_places_of_complex_numbers():
    def places(x):
        return torch.nonzero(x), *torch.nonzero(x.T, as_tuple=True), torch.argwhere(x[1])

    x = torch.tensor([[1 + 1j, 0, 2j], [0, 3, -0j]])
    session = open_in("compiled", taper_frontend.export(Function(places), (x,)))
    compare(session, Function(places), [x])


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float16, torch.float32])
def test_places_in_one_tensor_found_twice(dtype):
    """Torch counts once; what a dtype has to be converted to is converted each time."""

    def places(x):
        rows, columns = torch.where(x)
        return torch.nonzero(x), torch.argwhere(x)[:, 0] + rows, x[rows, columns]

    x = torch.tensor([[1 + 1j, 0, 2j], [0, 3, -0j]]) if dtype.is_complex else floats(2, 3).relu()
    session = open_in("compiled", taper_frontend.export(Function(places), (x.to(dtype),)))
    compare(session, Function(places), [x.to(dtype)])


def test_sizes_that_inputs_and_values_decide():
    module = Function(lambda x, m: (x[m] * 2, torch.nonzero(m), chained(x.flatten())))
    n = Dim("n", max=64)
    plan = taper_frontend.export(
        module, (floats(5, 3), mask(5)), dynamic_shapes={"args": ({0: n}, {0: n})}
    )
    session = taper_runtime.InferenceSession(plan)
    for rows in (5, 1, 64, 9, 0):
        compare(session, module, [floats(rows, 3), mask(rows)])


def test_places_on_an_axis_whose_size_varies():
    def cut(x, n):
        return *torch.tensor_split(x, n), x[2:][: n[0].item() : 3], x[-3 : n[1].item()]

    module = Function(cut)
    n = Dim("n", min=4, max=64)
    plan = taper_frontend.export(
        module, (floats(5, 3), numbers(5, 2)), dynamic_shapes={"args": ({0: n}, {})}
    )
    session = taper_runtime.InferenceSession(plan)
    for rows in (5, 4, 64, 9):
        compare(session, module, [floats(rows, 3), numbers(2 * rows, 2) - rows])


def test_a_size_that_the_module_does_not_take():
    module = Function(lambda x: x[x > 0].amax(0))
    session = taper_runtime.InferenceSession(taper_frontend.export(module, (floats(9),)))
    compare(session, module, [floats(9).abs() + 1])
    name = session.get_inputs()[0].name
    with pytest.raises(InputError, match=r"function_module.py.*expected 1 to 9, got 0"):
        session.run(None, {name: -np.ones(9, np.float32)})
    compare(session, module, [floats(9).abs() + 1])


@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, n, size: torch.repeat_interleave(x, n, 0, output_size=size),
        lambda x, n, size: torch.repeat_interleave(n, output_size=size),
    ],
    ids=["rows", "places"],
)
def test_counts_that_torch_refuses(function, size):
    def repeat(x, n):
        return function(x, n, size)

    module, x = Function(repeat), floats(3, 2)
    session = open_in("compiled", taper_frontend.export(module, (x, torch.tensor([1, 2, 1]))))
    compare(session, module, [x, torch.tensor([0, 0, 4])])
    wrong = [[-1, 2, 3], [1, 4, -1], [-9, 2, 1]]
    if size is not None:
        wrong += [[1, 1, 1], [9, 9, 9]]
    for counts in wrong:
        with pytest.raises(RuntimeError, match=r"negative|required size"):
            module(x, torch.tensor(counts))
        with pytest.raises(InputError, match=r"repeat_interleave|INDEX_SELECT"):
            session(x.numpy(), np.array(counts))


@pytest.mark.parametrize("dims", [None, (({0: Dim("rows")}, None),)])
def test_shares_that_do_not_add_up(dims):
    module = Function(shares)
    plan = taper_frontend.export(
        module, (floats(8, 2), torch.tensor([2, 1, 0, 5])), dynamic_shapes=dims
    )
    session = taper_runtime.InferenceSession(plan)
    for rows in (8,) if dims is None else (8, 3, 30):
        x = floats(rows, 2)
        for counts in ([rows, 0, 0, 0], [0, 0, 0, rows], [1, rows - 2, 1, 0]):
            compare(session, module, [x, torch.tensor(counts)])
        for counts in ([1, 1, 0, 0], [rows, 1, 0, 0], [1, 2, -1, rows - 2], [0, 0, 0, rows + 1]):
            with pytest.raises(RuntimeError, match=r"split|u\d"):
                module(x, torch.tensor(counts))
            with pytest.raises(InputError, match=r"the size u\d\w* that it computes: expected"):
                session(x.numpy(), np.array(counts))


def test_what_cannot_be_a_size_is_refused():
    def shifted(x, n):
        return x.new_zeros(3) + x[0, : (n.item() - 2)].sum()

    with pytest.raises((UnsupportedNodesError, ExportError), match=re.compile("torch|item", re.I)):
        taper_frontend.export(Function(shifted), (floats(4, 5), torch.tensor(3)))


def rows_of_one_branch(x, places):
    def kept(x, places):
        most = x[x[:, 0] > 0].amax(0)
        return most + x[places].sum(0) // 1 + (7 // places).sum() + x.nonzero().sum()

    return torch.cond((x[:, 0] > 0).any(), kept, lambda x, places: x.sum(0), (x, places))


def rows_of_nested_branches(x, places):
    def kept(x):
        return torch.cond(x.sum() > 0, lambda x: x[x > 0].sum(), lambda x: x[x < 0].mean(), (x,))

    return torch.cond(places[0] > 1, kept, lambda x: torch.unique(x.round()).sum(), (x,))


def loop_of_one_branch(x, places):
    """A loop in a branch whose sizes values decide; it ends, and refuses nothing, where taken."""

    def kept(x, places):
        end = 4 * places.sum() + 1
        _, sums = while_loop(
            lambda i, s: i != end,
            lambda i, s: (i + 1, s + x[places].sum(0) + 7 // places[0]),
            (torch.zeros_like(end), x[x[:, 0] > 0].amin(0)),
        )
        return sums

    return torch.cond((places > 0).all(), kept, lambda x, places: x.sum(0), (x, places))


@pytest.mark.reference
def test_a_loop_in_a_branch_that_is_not_taken_refuses_nothing_and_ends():
    example = (floats(4, 5).abs(), torch.tensor([1, 2]))
    plan = taper_frontend.export(Function(loop_of_one_branch), example, verify=False)
    session = open_in("compiled", plan)
    for x in (floats(4, 5).abs(), -floats(4, 5).abs()):
        for bad in ([0, 99], [-9, 0]):
            np.testing.assert_allclose(session(x.numpy(), np.array(bad)), x.sum(0), rtol=1e-5)
    x, places = floats(4, 5).abs(), [2, 1]
    expected = x.amin(0) + 13 * (x[places].sum(0) + 3)
    np.testing.assert_allclose(session(x.numpy(), np.array(places)), expected, rtol=1e-5)


@pytest.mark.parametrize("function", [rows_of_one_branch, rows_of_nested_branches])
def test_a_branch_that_is_not_taken_refuses_nothing(function):
    """No maximum of nothing, index out of range or division by 0, but where the branch is taken."""
    module, example = Function(function), (floats(4, 5).abs(), torch.tensor([1, 2]))
    plan = taper_frontend.export(module, example, dynamic_shapes=(({0: "n"}, None),))
    session = open_in("compiled", plan)
    bad = torch.tensor([0, 99])
    for x in (floats(4, 5), floats(7, 5).abs(), -floats(2, 5).abs()):
        compare(session, module, [x, torch.tensor([1, 1])])
        if function is rows_of_nested_branches or not (x[:, 0] > 0).any():
            compare(session, module, [x, bad])
        else:
            with pytest.raises(InputError):
                session(x.numpy(), bad.numpy())


def in_a_branch(kept, other=lambda x, n: x.sum(0)):
    return Function(lambda x, n: torch.cond(x.sum() > 0, kept, other, (x, n)))


def rows_of_some_branch(x, n):
    """Several results, of which some have sizes that differ, also in a branch inside."""

    def inside(x, n):
        low = x[x[:, 0] < 0]
        return torch.cond(x[0, 0] > 0, lambda x, n: x[1:3].clone(), lambda x, n: low.sin(), (x, n))

    def first(x, n):
        return x[x[:, 0] > 0], x * 2

    return torch.cond(x.sum() > 0, first, lambda x, n: (inside(x, n), x - 1), (x, n))


def parts_of_two_sizes(x, n):
    """Results whose sizes differ along two axes, and a size that a mask decides among them."""

    def first(x, n):
        return x[:2, :3].clone(), x[x[:, 0] > 0][:, None] * 2

    def second(x, n):
        return x.cos(), x[:2, None].repeat(1, 2, 1) + x[x[:, 1] > 0].sum()

    return torch.cond(x.sum() > 0, first, second, (x, n))


@pytest.mark.parametrize("function", [None, rows_of_some_branch, parts_of_two_sizes])
def test_branches_decide_sizes_of_results(function):
    module = (
        Function(function)
        if function
        else in_a_branch(lambda x, n: x[x[:, 0] > 0], lambda x, n: x[x[:, 1] > 0])
    )
    plan = taper_frontend.export(module.eval(), (floats(4, 5), torch.tensor(3)))
    session = open_in("compiled", plan)
    for x in (floats(4, 5).abs(), -floats(4, 5).abs(), floats(4, 5)):
        compare(session, module, [x, torch.tensor(2)])


class BranchesOverRows(nn.Module):
    """Branches with weights over rows that a mask chooses."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x, n):
        rows = x[x[:, 0] > 0]
        return torch.cond(x.sum() > 0, self.first, lambda rows: self.second(rows) * 2, (rows,))


def test_branches_with_weights_take_rows_that_a_mask_chooses():
    """One branch is computed: its blocks have the sizes of its operands."""
    module = BranchesOverRows().eval()
    plan = taper_frontend.export(module, (floats(4, 5), torch.tensor(3)), verify=False)
    assert [node.op for node in plan.nodes].count("IF") == 1
    session = open_in("compiled", plan)
    for x in (floats(4, 5).abs(), -floats(4, 5).abs(), floats(4, 5)):
        rows = x[x[:, 0] > 0]
        want = module.first(rows) if x.sum() > 0 else module.second(rows) * 2
        found = session(x.numpy(), np.array(2))
        np.testing.assert_allclose(found, want.detach(), rtol=1e-5, atol=1e-6)


def test_a_number_in_a_branch_is_a_size_where_the_branch_is_taken():
    module = in_a_branch(lambda x, n: x.narrow(0, 0, n.item()).sum(0))
    session = open_in(
        "compiled", taper_frontend.export(module.eval(), (floats(4, 5), torch.tensor(3)))
    )
    x = floats(4, 5).abs()
    compare(session, module, [x, torch.tensor(2)])
    with pytest.raises(InputError, match=r"expected 0 to 4, got 99"):
        session(x.numpy(), np.array(99))
    for n in (2, 99, -99):
        np.testing.assert_allclose(session(-x.numpy(), np.array(n)), -x.sum(0), rtol=1e-5)


def test_only_the_branch_that_is_taken_draws():
    def kept(x, n):
        return x[x[:, 0] > 0].sum(0) + torch.rand(5) + torch.rand(5)

    class Draws(nn.Module):
        def forward(self, x, n):
            result = torch.cond(x.sum() > 0, kept, lambda x, n: x.sum(0), (x, n))
            return result, torch.rand(2)

    plan = taper_frontend.export(Draws().eval(), (floats(4, 5), torch.tensor(3)))
    options = taper_runtime.SessionOptions()
    options.seed = 7
    session = taper_runtime.InferenceSession(plan, options)
    positive = floats(4, 5).abs()
    torch.manual_seed(7)
    for x in (positive, -positive, positive):
        for got, want in zip(
            session(x.numpy(), np.array(3)), Draws()(x, torch.tensor(3)), strict=True
        ):
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-5)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (
            in_a_branch(lambda x, n: x[x[:, 0] > 0] + 0j, lambda x, n: x[x[:, 1] > 0] + 0j),
            "complex results of both branches of one shape",
        ),
        (
            in_a_branch(
                lambda x, n: torch.repeat_interleave(x[0], x[0].abs().long()).sum(0) + x[0]
            ),
            "numbers of elements that a mask chooses, or numbers that item",
        ),
    ],
)
def test_what_branches_cannot_decide_is_refused(module, words):
    with pytest.raises(UnsupportedNodesError, match=words):
        taper_frontend.export(module.eval(), (floats(4, 5), torch.tensor(3)))


class Experts(nn.Module):
    """A mixture of experts that computes each expert for its tokens alone."""

    def __init__(self, width=16, count=4):
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 32), nn.SiLU(), nn.Linear(32, width))
            for _ in range(count)
        )

    def forward(self, x):
        weight, chosen = self.router(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            token, place = torch.where(chosen == index)
            out.index_add_(0, token, expert(x[token]) * weight[token, place, None])
        return out


class Boxes(nn.Module):
    """What a detector does last: boxes of each class by themselves, the best few of all."""

    def forward(self, boxes, scores, classes):
        apart = boxes + classes[:, None] * 10
        kept = vision_ops.nms(apart, scores, 0.4)[:5]
        return boxes[kept], scores[kept], kept


@pytest.mark.filterwarnings("ignore:1 node is without a native kernel")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_torchvision_s_nms(dtype):
    def arguments(count):
        corner = torch.rand(count, 2, dtype=dtype)
        boxes = torch.cat([corner, corner + torch.rand(count, 2, dtype=dtype)], 1)
        scores = torch.randint(0, 20, (count,)).to(dtype) / 20  # some are equal
        return boxes, scores, torch.randint(0, 3, (count,))

    torch.manual_seed(0)
    dims = {"boxes": {0: "n"}, "scores": {0: "n"}, "classes": {0: "n"}}
    plan = taper_frontend.export(Boxes(), arguments(30), dynamic_shapes=dims)
    assert "NMS" in [node.op for node in plan.nodes]
    fallbacks = [each["op"] for each in plan.metadata["fallbacks"]]
    assert fallbacks == ([] if dtype == torch.float32 else ["NMS"])
    session = taper_runtime.InferenceSession(plan)
    for count in (1, 0, 2, 30, 100, 7):
        compare(session, Boxes(), arguments(count))


def test_experts():
    torch.manual_seed(0)
    module = Experts().eval()
    plan = taper_frontend.export(module, (floats(10, 16),))
    assert plan.origins
    session = taper_runtime.InferenceSession(plan)
    for _ in range(20):
        compare(session, module, [floats(10, 16)])
