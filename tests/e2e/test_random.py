"""Random numbers: torch's own for the same seed, in its order, over all runs of a session."""

import copy
import re
import runpy
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import taper_frontend
import taper_runtime
from lowering import Call
from marks import NUMPY, STATE
from taper_runtime import InferenceSession, InputError, RunOptions, SessionOptions

torch.set_num_threads(1)
F = torch.nn.functional
X = torch.linspace(-2, 2, 24).reshape(4, 6)
SEEDS = (0, 7, 2**32 + 7, -1, 2**63 - 1)
EXECUTORS = pytest.mark.parametrize("executor", ["compiled", "interpreted"])


def module_of(function):
    return Call(function).eval()


def plan_of(function, *args, **kwargs):
    return taper_frontend.export(module_of(function), args, **kwargs)


def open_seeded(plan, seed, executor="compiled"):
    options = SessionOptions()
    options.seed = seed
    options.executor = executor
    return InferenceSession(plan, options)


def run(session, *tensors, seed=None):
    options = RunOptions()
    options.seed = seed
    feed = {arg.name: x.numpy() for arg, x in zip(session.get_inputs(), tensors, strict=True)}
    return session.run(None, feed, options)


def check_equal(got, want):
    """Integers, and floats that only multiply and add 0, bit for bit; others to a rounding."""
    want = torch.utils._pytree.tree_leaves(want)
    for index, (mine, torchs) in enumerate(zip(got, want, strict=True)):
        torchs = torchs.numpy()
        assert mine.dtype == torchs.dtype
        if mine.dtype.kind in "fc":
            eps = np.finfo(mine.dtype).eps
            np.testing.assert_allclose(mine, torchs, 8 * eps, 4 * eps, err_msg=str(index))
        else:
            np.testing.assert_array_equal(mine, torchs, str(index))


def check_function(function, *args, seeds=SEEDS, executor="compiled"):
    """Compare a plan with its function: a session over three runs, and runs with seeds."""
    plan = plan_of(function, *args)
    for seed in seeds:
        session = open_seeded(plan, seed, executor)
        torch.manual_seed(seed)
        for _ in range(3):
            check_equal(run(session, *args), function(*args))
    return plan


SIZES = ((), (1,), (5,), (15,), (16,), (17,), (1000,), (3, 7), (0,), (2, 0), (4, 8))
FLOATS = (torch.float32, torch.float64)


@EXECUTORS
def test_sizes_and_dtypes(executor):
    """Below 16 normals come in pairs, of which one may be left for the next run; else in blocks."""

    def draw():
        return [
            draw(size, dtype=dtype)
            for draw in (torch.rand, torch.randn)
            for size in SIZES
            for dtype in FLOATS
        ]

    check_function(draw, executor=executor)


def test_uniforms_and_integers_are_torchs_bits():
    def draw():
        uniforms = [torch.rand(size, dtype=dtype) for size in SIZES for dtype in FLOATS]
        limits = (1, 10, 2**28 - 1, 2**28, 2**28 + 1, 2**32, 2**40, 2**62)
        integers = [torch.randint(0, limit, (9,)) for limit in limits]
        return [
            *uniforms,
            *integers,
            torch.randint(-5, 5, (3, 4)),
            torch.randint(-(2**40), 3, (9,)),
        ]

    session = InferenceSession(plan_of(draw))
    for seed in SEEDS:
        torch.manual_seed(seed)
        for mine, torchs in zip(run(session, seed=seed), draw(), strict=True):
            np.testing.assert_array_equal(mine, torchs.numpy())


def test_laws():
    def draw(x):
        p = torch.softmax(x, -1)
        return [
            torch.empty(9).uniform_(-2, 3),
            torch.empty(9).normal_(1.5, 2),
            torch.empty(20).normal_(1.5, 2),
            torch.normal(x, 2.0),
            torch.normal(1.0, p),
            torch.normal(x, p),
            torch.normal(1.0, 2.0, (7,)),
            torch.empty(9).exponential_(2.0),
            torch.empty(9, dtype=torch.float64).exponential_(),
            torch.empty(9).geometric_(0.3),
            torch.empty(9).cauchy_(1, 0.5),
            torch.empty(9).log_normal_(0, 0.5),
            torch.bernoulli(p),
            torch.bernoulli(p.double()),
            torch.bernoulli(x, 0.3),
            torch.empty_like(x).bernoulli_(p),
            torch.multinomial(p, 1),
            torch.multinomial(p, 3),
            torch.multinomial(p, 20, replacement=True),
            torch.multinomial(p[0], 4),
            torch.randperm(1),
            torch.randperm(9),
            torch.randperm(1000),
            torch.randperm(9, dtype=torch.int32),
            torch.randint_like(x, 9),
            torch.randint_like(x, -3, 9),
            torch.empty(9).random_(5),
            torch.empty(9).random_(),
            torch.empty(9, dtype=torch.int64).random_(),
            torch.empty(9, dtype=torch.float64).random_(),
            torch.rand(9, dtype=torch.bfloat16).float(),
            torch.rand(9, dtype=torch.float16).float(),
            F.gumbel_softmax(x),
            torch.distributions.Normal(x, p, validate_args=False).rsample(),
            torch.distributions.Categorical(logits=x, validate_args=False).sample(),
            torch.distributions.Bernoulli(p, validate_args=False).sample(),
        ]

    check_function(draw, X, seeds=(0, 3))


def test_halves_are_rounded():
    """torch computes its normal 16-bit floats with roundings in between."""

    def draw():
        sizes = (5, 16, 17, 40)
        return [
            torch.randn(n, dtype=t).float() for n in sizes for t in (torch.half, torch.bfloat16)
        ]

    session = InferenceSession(plan_of(draw, verify=False))
    torch.manual_seed(4)
    for mine, torchs in zip(run(session, seed=4), draw(), strict=True):
        np.testing.assert_allclose(mine, torchs.numpy(), 0.02, 0.02)


def test_dropout_that_is_asked_for():
    def drop(x):
        image = x[None, :, :, None]
        return [
            F.dropout(x, 0.3),
            F.dropout(x.t(), 0.9),
            F.dropout(x, 0.0),
            torch.native_dropout(x, 0.0, True),
            torch.native_dropout(x, 1.0, True),
            torch.native_dropout(x, 0.5, False),
            F.dropout(x, 0.5, training=False),
            torch.native_dropout(x, 0.2, True),
            F.dropout1d(x),
            F.dropout2d(image),
            F.alpha_dropout(x, 0.4, training=True),
            F.feature_alpha_dropout(image, 0.4, training=True),
            torch.rand(1),
        ]

    check_function(drop, X, seeds=(0, 3))


def test_a_dropout_layer_left_in_training_mode_stops_the_export():
    """Not where it is the only one: then it was put into it."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.Dropout())
    with pytest.raises(taper_frontend.UnsupportedNodesError, match=r"training mode; call eval\(\)"):
        taper_frontend.export(model, (X,))
    model.eval()
    model[1].train()
    with pytest.warns(taper_frontend.ExportWarning, match="training mode"):
        plan = taper_frontend.export(model, (X,))
    torch.manual_seed(3)
    check_equal(run(open_seeded(plan, 3), X), model(X).detach())


def test_order_of_memory():
    """torch fills a tensor as it lies in memory, and makes normals one by one if not row-major."""

    def draw(x):
        views = [x.t(), x[:, ::2], x[:, :1].expand(4, 6), x.reshape(2, 3, 4).permute(1, 2, 0)]
        image = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)
        likes = (torch.rand_like, torch.randn_like, lambda v: torch.randint_like(v, 99))
        return [like(view) for like in likes for view in (*views, image)]

    check_function(draw, X, seeds=(0, 3))


def test_draws_nobody_reads_are_drawn():
    def draw(x):
        torch.rand(3)
        y = x + torch.rand(6)
        torch.randn(5)
        torch.randperm(9)
        return y, torch.randn(3)

    check_function(draw, X)


def test_equal_draws_are_not_one():
    """Nor are they folded, though nothing but their sizes decides them."""
    plan = check_function(lambda: [torch.rand(3), torch.rand(3), torch.rand(3) + torch.rand(3)])
    assert [node.op for node in plan.nodes].count("RANDOM") == 4
    first, second, _ = run(open_seeded(plan, 1))
    assert not np.array_equal(first, second)


def test_sizes_that_vary():
    """Whether normals come in blocks, and how far an integer reaches, is known at run time."""

    def draw(x):
        n = x.shape[0]
        torch.rand(n)
        normals = torch.randn(n), torch.randn_like(x)
        return *normals, torch.randint(0, n, (n, 2)), torch.randperm(n), F.dropout(x), torch.rand(1)

    shapes = [({0: torch.export.Dim("n", min=1, max=2000)},)]
    plan = plan_of(draw, X, dynamic_shapes=shapes)
    sizes = (4, 1, 16, 17, 2, 1000)
    for executor in ("compiled", "interpreted"):
        session = open_seeded(plan, 9, executor)
        torch.manual_seed(9)
        for n in sizes:
            x = torch.full((n, 6), 0.5)
            check_equal(run(session, x), draw(x))


def test_a_copied_session_goes_on_with_the_same_numbers(tmp_path):
    plan = taper_frontend.export(Call(lambda x: x + torch.randn(3)).eval(), (torch.zeros(3),))
    plan.save(tmp_path / "draws.taper")
    session = open_seeded(tmp_path / "draws.taper", 5)
    first = run(session, torch.zeros(3))
    again = copy.deepcopy(session)
    second = run(session, torch.zeros(3))
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(run(again, torch.zeros(3)), second)


def test_complex_numbers():
    """Real and imaginary parts are drawn in turns; normal ones have half the variance."""

    def draw(x):
        drawn = [
            make(size, dtype=torch.complex64)
            for make in (torch.rand, torch.randn)
            for size in SIZES
        ]
        return [
            *drawn,
            torch.rand_like(x),
            torch.randn_like(x),
            torch.randn_like(x, dtype=torch.float32),
        ]

    check_function(draw, X.to(torch.complex64), seeds=(0, 7))


@STATE
def test_a_module_with_other_state():
    """Both go on; a run with a seed of its own leaves the session's generator as it was."""

    class Walk(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("place", torch.zeros(3))

        def forward(self, x):
            self.place += torch.randn(3) * x
            return self.place + 0

    module = Walk().eval()
    x = torch.ones(3)
    plan = taper_frontend.export(module, (x,))
    session = open_seeded(plan, 5)
    assert session.state_names == ["place"]
    assert [arg.name for arg in session.get_inputs()] == ["x"]
    assert [arg.name for arg in session.get_outputs()] == list(plan.outputs)
    with pytest.raises(InputError, match="unknown state"):
        session.get_state("generator")
    torch.manual_seed(5)
    first = module(x).clone()
    check_equal(run(session, x), first)
    kept = torch.get_rng_state()
    torch.manual_seed(8)
    check_equal(run(session, x, seed=8), module(x))
    torch.set_rng_state(kept)
    check_equal(run(session, x), module(x))
    session.reset_state()
    check_equal(run(session, x), first)


@NUMPY
def test_a_run_that_fails_draws_nothing():
    plan = plan_of(lambda x: torch.linalg.inv(x) + torch.randn(2, 2), torch.eye(2), verify=False)
    session = open_seeded(plan, 2)
    with pytest.raises(InputError, match="INVERSE"):
        run(session, torch.zeros(2, 2))
    torch.manual_seed(2)
    check_equal(run(session, torch.eye(2)), torch.eye(2) + torch.randn(2, 2))


def test_without_a_seed_no_two_runs_are_alike():
    plan = plan_of(lambda: torch.rand(8))
    sessions = [InferenceSession(plan) for _ in range(2)]
    drawn = {run(session)[0].tobytes() for session in sessions for _ in range(3)}
    assert len(drawn) == 6


@pytest.mark.parametrize("seed", [-(2**63) - 1, 2**64, 1.5, True, "1"])
def test_bad_seeds(seed):
    plan = plan_of(lambda: torch.rand(2))
    with pytest.raises(InputError, match="seed: expected None or an int"):
        open_seeded(plan, seed)
    with pytest.raises(InputError, match="seed: expected None or an int"):
        run(InferenceSession(plan), seed=seed)
    with pytest.raises(InputError, match="run_options: expected RunOptions"):
        InferenceSession(plan).run(None, {}, {"seed": 1})


def test_threads():
    """Runs with seeds of their own give the same in any number of threads; a session's seed gives
    each run a part of one sequence."""
    plan = plan_of(lambda: torch.randn(50))
    seeded, shared = InferenceSession(plan), open_seeded(plan, 4)
    wanted = [run(seeded, seed=seed)[0].tobytes() for seed in range(8)]
    found, parts, errors = {}, [], []

    def work(seed):
        try:
            found[seed] = {run(seeded, seed=seed)[0].tobytes() for _ in range(5)}
            parts.extend(run(shared)[0].tobytes() for _ in range(5))
        except Exception as error:  # a thread's own is lost
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert [found[seed] for seed in range(8)] == [{one} for one in wanted]
    again = open_seeded(plan, 4)
    assert sorted(parts) == sorted(run(again)[0].tobytes() for _ in range(40))


def test_other_processes_and_files(tmp_path):
    """A saved plan gives the same numbers in a process without torch."""
    path = tmp_path / "random.taper"
    plan_of(lambda: [torch.rand(3), torch.randint(0, 99, (4,)), torch.randperm(9)]).save(path)
    code = (
        "import sys, taper_runtime as t; o = t.SessionOptions(); o.seed = 6;"
        "s = t.InferenceSession(sys.argv[1], o); s.run(None, {});"
        "print([x.tolist() for x in s.run(None, {})]); assert 'torch' not in sys.modules"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code, path], check=True, capture_output=True, text=True
        ).stdout
        for _ in range(2)
    }
    session = open_seeded(taper_runtime.load(path), 6)
    run(session)
    assert texts == {f"{[x.tolist() for x in run(session)]}\n"}


def test_a_generator_of_the_models_own_is_refused():
    generator = torch.Generator()
    refused = r"an object of class torch\._C\.Generator"
    with pytest.raises(taper_frontend.UnsupportedNodesError, match=refused):
        plan_of(lambda: torch.rand(3, generator=generator))


def test_verification_leaves_torchs_generator_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    plan_of(lambda x: x + torch.randn(4, 6), X)
    assert torch.equal(torch.get_rng_state(), before)


def test_example_of_the_page(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "random-numbers.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(block, encoding="utf-8")
    runpy.run_path(str(script))
