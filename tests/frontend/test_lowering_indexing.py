"""Reading and writing at places: every form of index torch lowers to."""

from __future__ import annotations

import pytest
import torch

from lowering import check_lowering, evaluate_graph, lower_model, ops_of
from taper_runtime.base.errors import InputError

X = torch.arange(60.0).reshape(3, 4, 5)
I = torch.tensor([2, 0, -1])  # noqa: E741
J = torch.tensor([[1], [-2]])


@pytest.mark.parametrize(
    "index",
    [
        lambda i, j: (i,),
        lambda i, j: (slice(None), i),
        lambda i, j: (..., i),
        lambda i, j: (i, j),
        lambda i, j: (i, slice(None), j),
        lambda i, j: (slice(None), i, j),
        lambda i, j: (i, j, j),
        lambda i, j: (i[:, None, None], slice(1, 3), j),
        lambda i, j: (None, i, 1),
    ],
)
def test_reading_and_writing(index):
    def model(x, i, j, value):
        at = index(i, j)
        written, added = x.clone(), x.clone()
        written[at] = value
        added.index_put_([i, j], value, accumulate=True)
        return x[at], written, added

    check_lowering(model, X, I, J, torch.tensor(100.0))


def test_one_index_is_one_select():
    graph = check_lowering(lambda x, i: x[:, i], X, I)
    assert ops_of(graph) == ["INDEX_SELECT"]


def test_out_of_range_in_one_of_several_indices_is_an_error():
    graph = lower_model(lambda x, i, j: x[i, j], X, I, J).graph
    evaluate_graph(graph, [X, I, J])
    for i, j in ((torch.tensor([0, 0, 3]), J), (I, torch.tensor([[-5], [0]]))):
        with pytest.raises(InputError):
            evaluate_graph(graph, [X, i, j])


def test_int32_indices():
    check_lowering(lambda x, i, j: (x[i, j], x[i]), X, I.int(), J.int())


def test_embedding():
    net = torch.nn.Embedding(7, 4, padding_idx=2).eval()
    for ids in (
        torch.tensor([[0, 6], [2, 2]]),
        torch.tensor(3),
        torch.tensor([1], dtype=torch.int32),
    ):
        assert ops_of(check_lowering(net, ids)) == ["EMBEDDING"]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("offsets", [[0, 2], [0, 0, 3], [0, 3, 3], [0, 1, 1, 2], [0, 4]])
def test_the_last_bag_ends_at_the_last_offset(mode, offsets):
    """torch documents it so, but takes its own mean and maximum over what follows too."""
    table, words = torch.randn(6, 3), torch.tensor([0, 5, 2, 2])
    begins = torch.tensor(offsets)

    def bags(table, words, begins):
        return torch.nn.functional.embedding_bag(
            words, table, begins, mode=mode, include_last_offset=True
        )

    graph = lower_model(bags, table, words, begins).graph
    (got,) = evaluate_graph(graph, [table, words, begins])
    of_words = bags(table, words[: offsets[-1]], begins)
    torch.testing.assert_close(got, of_words)


def test_accumulation_of_repeated_places():
    def model(x, i, v):
        return [
            x.index_put([i], v, accumulate=True),
            x.index_add(0, i, v),
            x.scatter_add(0, i[:, None, None].expand(4, 4, 5), v),
        ]

    check_lowering(model, X, torch.tensor([1, 1, 0, 1]), torch.ones(4, 4, 5))


def test_scatter_reduce():
    index = torch.tensor([[0, 1, 1], [2, 2, 2]])
    source = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])

    def model(x, index, source):
        return [
            y.scatter_reduce(0, index, s, reduce, include_self=include_self)
            for y, s in ((x, source), (x.long(), source.long()))
            for reduce in ("sum", "prod", "mean", "amax", "amin")
            for include_self in (True, False)
        ]

    check_lowering(model, torch.full((3, 3), 2.0), index, source)


def test_source_larger_than_index():
    def model(x, index, source):
        return [
            x.scatter(1, index, source),
            x.scatter(1, index, 9.0),
            torch.ops.aten.scatter.value_reduce(x + 2, 1, index, 3.0, reduce="multiply"),
        ]

    check_lowering(model, torch.zeros(3, 5), torch.tensor([[0, 2], [1, 4]]), torch.rand(4, 3))


def test_masks_that_place_values():
    def model(x, mask, whole, row):
        results = [x.clone() for _ in range(4)]
        results[0][x > 30] = 0.5
        results[1][mask] = row
        results[2][:, whole] = row
        results[3].index_put_([x > 30], torch.tensor(1.0), accumulate=True)
        return [*results, x.masked_fill(mask[:, None, None], 2.0)]

    mask = torch.tensor([True, False, True])
    check_lowering(model, X, mask, torch.tensor([True, False, False, True]), torch.rand(5))


def test_masked_scatter():
    check_lowering(lambda x, s: x.masked_scatter(x % 3 == 0, s), X, torch.rand(30))


def test_writing_slices():
    def model(x, v):
        results = [x.clone() for _ in range(5)]
        results[0][1:] = 0.0
        results[1][:, ::2] = v
        results[2][..., -1] = v
        results[3][:, 1:3, 0] = 7.0
        results[4][:] = v[0]
        return results

    check_lowering(model, X, torch.tensor([[1.5]]))


def test_order():
    x = torch.tensor([[3.0, float("nan"), -1.0, 7.0], [0.5, 2.0, float("inf"), -4.0]])

    def model(x):
        return [
            *x.sort(), *x.sort(0, descending=True), *x.topk(2), *x.topk(3, 1, largest=False),
            x.argsort(-1), x.argmax(), x.argmax(0), x.argmin(1, keepdim=True), *x.max(0), *x.min(1),
        ]  # fmt: skip

    check_lowering(model, x)


def test_equal_elements_keep_their_order_in_a_stable_sort():
    def model(n):
        return [*n.sort(stable=True), *n.sort(stable=True, descending=True, dim=0)]

    check_lowering(model, torch.tensor([2, 1, 2, 0, 1, 1]))


def test_scalars():
    def model(x, i):
        return [
            x.index_select(0, i), x.gather(0, i), x.scatter(0, i, 5.0), x.take(i), *x.sort(),
            *x.topk(1), x.cumsum(0), x.argmax(0), x.softmax(0), x.index_copy(0, i, x), *x.max(0),
        ]  # fmt: skip

    check_lowering(model, torch.tensor(2.5), torch.tensor(0))
