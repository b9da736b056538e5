"""Modules that write to their buffers: plans with state."""

import threading

import numpy as np
import pytest
import torch

import taper_frontend
import taper_runtime
from marks import NUMPY, STATE
from taper_runtime import InputError

torch.set_num_threads(1)

pytestmark = [STATE, NUMPY]


class Counter(torch.nn.Module):
    """Adds up what it has seen; gives the running sum, and its own count."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.full((3,), 0.5))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        before = self.total * self.scale
        self.total += x
        self.steps += 1
        return before, self.total * self.steps, self.steps


class Cache(torch.nn.Module):
    """Writes rows into a buffer at the positions it is given."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(8, 3), persistent=False)

    def forward(self, x, positions):
        self.rows.index_copy_(0, positions, x)
        return self.rows.sum(0)


def opened(plan, executor="compiled"):
    options = taper_runtime.SessionOptions()
    options.executor = executor
    return taper_runtime.InferenceSession(plan, options)


def run(session, *arrays):
    feed = {arg.name: x for arg, x in zip(session.get_inputs(), arrays, strict=True)}
    return session.run(None, feed)


@pytest.mark.parametrize("executor", ["compiled", "interpreted"])
def test_runs_go_on_where_the_last_one_ended(executor, tmp_path):
    module = Counter()
    plan = taper_frontend.export(module, (torch.ones(3),))
    assert module.steps == 0, "export leaves the module as it was"
    plan.save(tmp_path / "counter.taper")
    session = opened(tmp_path / "counter.taper", executor)
    assert sorted(session.state_names) == ["steps", "total"]
    for _ in range(4):
        x = torch.randn(3)
        for got, want in zip(run(session, x.numpy()), module(x), strict=True):
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(
        session.get_state("total"), module.total.numpy(), rtol=1e-6, atol=1e-6
    )


def test_a_fresh_session_starts_from_the_exported_value():
    plan = taper_frontend.export(Counter(), (torch.ones(3),))
    first, second = opened(plan), opened(plan)
    run(first, np.ones(3, np.float32))
    assert first.get_state("steps") == 1
    assert second.get_state("steps") == 0
    np.testing.assert_array_equal(second.get_state("total"), np.full(3, 0.5, np.float32))


def test_get_set_reset():
    session = opened(taper_frontend.export(Counter(), (torch.ones(3),)))
    x = np.ones(3, np.float32)
    session.set_state("steps", np.array(41))
    assert run(session, x)[2] == 42
    held = session.get_state("total")
    run(session, x)
    np.testing.assert_array_equal(held, np.full(3, 1.5, np.float32))
    session.reset_state("total")
    assert session.get_state("steps") == 43
    np.testing.assert_array_equal(session.get_state("total"), np.full(3, 0.5, np.float32))
    session.reset_state()
    assert session.get_state("steps") == 0
    for call in (
        lambda: session.get_state("scale"),
        lambda: session.reset_state("x"),
        lambda: session.set_state("steps", np.array(1.0)),
        lambda: session.set_state("total", np.zeros(4, np.float32)),
    ):
        with pytest.raises(InputError):
            call()


def test_an_output_is_not_the_state_itself():
    session = opened(taper_frontend.export(Counter(), (torch.ones(3),)))
    x = np.ones(3, np.float32)
    _, _, steps = run(session, x)
    steps += 100
    assert run(session, x)[2] == 2
    assert steps == 101


def test_cache_and_a_run_that_fails():
    plan = taper_frontend.export(Cache(), (torch.randn(2, 3), torch.tensor([0, 1])))
    session = opened(plan)
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    run(session, rows, np.array([2, 5]))
    (total,) = run(session, rows, np.array([0, 7]))
    np.testing.assert_array_equal(total, 2 * rows.sum(0))
    before = session.get_state("rows")
    np.testing.assert_array_equal(before[[2, 5, 0, 7]], np.concatenate([rows, rows]))
    with pytest.raises(InputError):
        run(session, rows, np.array([3, 99]))
    np.testing.assert_array_equal(session.get_state("rows"), before)


def test_runs_take_turns():
    session = opened(taper_frontend.export(Counter(), (torch.ones(3),)))

    def work():
        for _ in range(200):
            run(session, np.ones(3, np.float32))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert session.get_state("steps") == 800
    np.testing.assert_array_equal(session.get_state("total"), np.full(3, 800.5, np.float32))


def test_state_beside_sizes_that_vary():
    class Mean(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(2))

        def forward(self, x):
            self.seen.add_(x.sum(0))
            return x + self.seen

    module = Mean()
    n = torch.export.Dim("n", max=50)
    session = opened(taper_frontend.export(module, (torch.randn(3, 2),), dynamic_shapes=({0: n},)))
    for size in (4, 1, 50, 4):
        x = torch.randn(size, 2)
        want = module(x).numpy()
        np.testing.assert_allclose(run(session, x.numpy())[0], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_in_training_mode_gathers_statistics(affine):
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4, affine=affine, momentum=0.3)
    )
    with pytest.warns(taper_frontend.ExportWarning, match=r"in training mode.*1 \(BatchNorm2d\)"):
        session = opened(taper_frontend.export(net, (torch.randn(2, 3, 6, 6),)))
    for _ in range(3):
        x = torch.randn(2, 3, 6, 6)
        want = net(x).detach().numpy()
        np.testing.assert_allclose(run(session, x.numpy())[0], want, rtol=1e-4, atol=1e-5)
    for name, buffer in net.named_buffers():
        np.testing.assert_allclose(session.get_state(name), buffer.numpy(), rtol=1e-4, atol=1e-6)


def test_plans_without_state():
    session = opened(taper_frontend.export(torch.nn.ReLU(), (torch.ones(3),)))
    assert session.state_names == []
    session.reset_state()
    with pytest.raises(InputError, match="no state"):
        session.get_state("x")


def test_buffers_written_through_another_object():
    """As a static cache of transformers holds the buffers of the module around it."""

    class Holder:
        pass

    class Indirect(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.held = Holder()
            self.held.rows = torch.zeros(6, 2)
            self.register_buffer("rows", self.held.rows, persistent=False)

        def forward(self, x, positions):
            self.held.rows.index_copy_(0, positions, x)
            self.held.rows[0].add_(1)
            return self.held.rows.sum(0)

    module = Indirect()
    plan = taper_frontend.export(module, (torch.ones(1, 2), torch.tensor([3])))
    assert list(plan.states) == ["rows"]
    assert not module.rows.any(), "export leaves the module as it was"
    session = opened(plan)
    for position in (2, 5, 2):
        x, at = torch.full((1, 2), position + 0.5), torch.tensor([position])
        np.testing.assert_array_equal(run(session, x.numpy(), at.numpy())[0], module(x, at).numpy())
    np.testing.assert_array_equal(session.get_state("rows"), module.rows.numpy())
