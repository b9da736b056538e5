"""Memory kinds, caches, devices, failures: what a step does and leaves behind."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from simulated import executor, model, simulator, step
from taper_openinfer import OpenInferError, ProgramError, Simulator, StepError, parse
from taper_openinfer.oinf.reader import Model, open_model
from taper_openinfer.oinf.writer import write_model
from taper_openinfer.simulator.devices import available_devices


def f32(*values):
    return np.array(values, np.float32)


# -- memory ----------------------------------------------------------------------------------------

KINDS = """
dynamic { x: f32[2]; n: f32; }
volatile { v: f32[2]; y: f32[2] @init(5.0); z: f32[2]; }
constant { c: f32[2]; }
persistent { p: f32[2] @init(2.0); }
block entry {
    assign t: f32[2];
    op add(x, c) >> t;
    op mul(y, t) >> y;
    op add(v, n) >> v;
    cache.read p >> z;
    op add(z, c) >> z;
    cache.write z >> p;
    return;
    op fill(y, value=0.0) >> y;
}
"""


def kinds():
    return executor(KINDS, v=f32(1, 2), c=f32(10, 20))


def test_what_a_step_starts_from_and_what_stays():
    made = kinds()
    for number in (1, 2):
        step(made, x=f32(1, 2), n=3.0)
        np.testing.assert_array_equal(made.fetch("y"), [55, 110], "of @init in every step")
        np.testing.assert_array_equal(made.fetch("v"), [4, 5], "of the file in every step")
        np.testing.assert_array_equal(made.fetch("p"), [2 + 10 * number, 2 + 20 * number])
    np.testing.assert_array_equal(made.fetch("c"), [10, 20])


def test_a_dynamic_variable_is_there_for_one_step():
    made = kinds()
    step(made, x=f32(1, 2), n=3.0)
    assert made.fetch("n") == 3
    message = r"op add\(v,n\) >> v: n: expected a value for this step"
    with pytest.raises(StepError, match=message) as caught:
        step(made, x=f32(1, 2))
    assert (caught.value.variable, caught.value.place.line) == ("n", 10)
    with pytest.raises(OpenInferError, match="n: expected a value for this step"):
        made.fetch("n")
    with pytest.raises(StepError, match="x: expected a value for this step"):
        made.step()


def test_a_dynamic_variable_given_twice_has_the_last_value():
    made = kinds()
    made.insert_dynamic("n", 1.0)
    step(made, x=f32(1, 2), n=3.0)
    np.testing.assert_array_equal(made.fetch("v"), [4, 5])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("y", f32(1, 2), r"expected a dynamic variable \(x, n\), got 'y'"),
        ("xx", f32(1, 2), r"got 'xx' \(did you mean 'x'\?\)"),
        ("x", f32(1), r"x: expected an array of shape \(2,\), got \(1,\)"),
        ("x", np.zeros(2), "x: expected float32 elements of f32, got float64"),
        ("x", 1.0, "x: expected float32 elements of f32, got float64"),
        ("n", f32(1), r"n: expected an array of shape \(\), got \(1,\)"),
        ("n", "three", "n: expected float32 elements of f32, got <U5"),
    ],
)
def test_what_is_given_is_checked(name, value, message):
    made = kinds()
    with pytest.raises(OpenInferError, match=message):
        made.insert_dynamic(name, value)


@pytest.mark.parametrize(("dtype", "value"), [("i8", 128), ("u4", 16), ("bool", 2), ("i32", 1.5)])
def test_numbers_that_a_type_lacks_are_refused(dtype, value):
    made = executor(f"dynamic {{ x: {dtype}; }} block entry {{ return; }}")
    with pytest.raises(OpenInferError, match=f"x: expected a value of {dtype}, got"):
        made.insert_dynamic("x", value)


def test_what_is_given_and_fetched_is_a_copy():
    made = kinds()
    x = f32(1, 2)
    made.insert_dynamic("x", x)
    x[:] = 99
    step(made, n=3.0)
    y = made.fetch("y")
    np.testing.assert_array_equal(y, [55, 110])
    y[:] = 0
    c = made.fetch("c")
    c[:] = 0
    p = made.fetch("p")
    p[:] = 0
    np.testing.assert_array_equal(made.fetch("y"), [55, 110])
    np.testing.assert_array_equal(made.fetch("c"), [10, 20])
    np.testing.assert_array_equal(made.fetch("p"), [12, 22])


def test_what_cannot_be_fetched_says_why():
    made = step(kinds(), x=f32(1, 2), n=3.0)
    with pytest.raises(OpenInferError, match="t: expected a running step for a temporary"):
        made.fetch("t")
    with pytest.raises(OpenInferError, match="expected a variable of the program, got 'nothing'"):
        made.fetch("nothing")
    with pytest.raises(OpenInferError, match="expected a variable"):
        made.state("nothing")


def test_scalars_are_numbers_of_python():
    text = """
    dynamic { a: i32; b: bf16; }
    volatile { c: bool @init(true); d: f8 @init(1.5); }
    persistent { e: i8 @init(-3); f: f16; }
    block entry { return; }
    """
    made = executor(text)
    made.insert_dynamic("a", 7)
    made.insert_dynamic("b", 2.5)
    values = {name: made.fetch(name) for name in "abcdef"}
    assert values == {"a": 7, "b": 2.5, "c": True, "d": 1.5, "e": -3, "f": 0.0}
    assert [type(value) for value in values.values()] == [int, float, bool, float, int, float]


def test_data_are_read_when_a_node_needs_them(tmp_path):
    text = """
    dynamic { x: f32[1000]; }
    volatile { y: f32[1000]; unused: f32[1000]; }
    constant { w: f32[1000]; W(l): f32[1000] @pattern("layer.{l}"); }
    persistent { p: f32[1000]; }
    block entry {
        op add(x, w) >> y;
        loop some (l in 1..3) { op add(y, W[l]) >> y; }
    }
    """
    ones = np.ones(1000, np.float32)
    names = ("w", "unused", *(f"layer.{n}" for n in range(5)))
    write_model(tmp_path / "m.oinf", dict.fromkeys(names, ones))
    with open_model(tmp_path / "m.oinf") as opened:
        before = opened.bytes_read
        made = Simulator(opened, parse(text)).make_executor()
        other = Simulator(opened, parse(text)).make_executor()
        assert opened.bytes_read == before
        states = {name: made.state(name) for name in ("x", "y", "w", "W", "unused", "p")}
        assert set(states.values()) == {"Unloaded"}
        step(made, x=ones)
        assert opened.bytes_read - before == 3 * 4000, "w and two layers"
        loaded = {name for name in states if made.state(name) == "Data"}
        assert loaded == {"x", "y", "w", "W"}
        assert other.state("w") == "Unloaded"
        step(made, x=ones)
        assert opened.bytes_read - before == 3 * 4000, "kept"
        np.testing.assert_array_equal(made.fetch("unused"), ones)
        assert made.state("unused") == "Data"
        np.testing.assert_array_equal(made.fetch("p"), 0 * ones)
        assert made.state("p") == "Data"


def test_no_data_in_the_file_means_init_and_no_init_zeros():
    from taper_openinfer import UninitializedTensor

    text = """
    volatile { a: f32[2]; }
    constant { b: f32[2] @init(3.0); c: f32[2] @init(4.0); d: f32[2] @init(9.0); }
    block entry { return; }
    """
    empty = UninitializedTensor("f32", (2,))
    made = Simulator(
        Model.of({"a": empty, "b": empty, "d": f32(1, 2)}), parse(text)
    ).make_executor()
    values = {name: made.fetch(name).tolist() for name in "abcd"}
    assert values == {"a": [0, 0], "b": [3, 3], "c": [4, 4], "d": [1, 2]}


def test_executors_of_one_simulator_do_not_touch_each_other():
    both = simulator(KINDS, v=f32(1, 2), c=f32(10, 20))
    one, other = both.make_executor(), both.make_executor()
    step(one, x=f32(1, 2), n=3.0)
    step(one, x=f32(1, 2), n=3.0)
    assert other.state("p") == "Unloaded"
    step(other, x=f32(0, 0), n=0.0)
    np.testing.assert_array_equal(one.fetch("p"), [22, 42])
    np.testing.assert_array_equal(other.fetch("p"), [12, 22])
    np.testing.assert_array_equal(one.fetch("y"), [55, 110])


def test_executors_of_one_simulator_step_at_once_in_threads():
    zeros = {f"layers__{layer}__weight": np.zeros((8, 8), np.float32) for layer in range(3)}
    zeros |= {f"layers__{layer}__bias": np.zeros(8, np.float32) for layer in range(3)}
    both = simulator("residual_stack", {"B": 4, "D": 8, "layers": 3}, **zeros)
    results = {}

    def work(number):
        made = both.make_executor()
        x = np.full((4, 8), number, np.float32)
        results[number] = all((step(made, x=x).fetch("y") == number).all() for _ in range(50))

    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert results == dict.fromkeys(range(4), True)


# -- caches at work --------------------------------------------------------------------------------


def test_what_was_read_from_a_cache_stays_as_it_was():
    text = """
    dynamic { x: f32[2]; }
    volatile { all: f32[2, 2]; row: f32[2]; again: f32[2, 2]; whole: f32[2]; one: f32; }
    persistent { A(i): f32[2] @table; p: f32[2]; B(i): f32 @table; }
    constant { five: f32 @init(5.0); }
    block entry {
        cache.read B[1] >> one;
        cache.write five >> B[1];
        cache.write x >> A[0];
        cache.write x >> A[1];
        cache.write x >> p;
        cache.read A[] >> all;
        cache.read A[0] >> row;
        cache.read p >> whole;
        op add(x, x) >> x;
        cache.write x >> A[0];
        cache.write x >> p;
        cache.reset A[1];
        transfer all >> again;
        cache.reset A;
    }
    """
    made = step(executor(text), x=f32(1, 2))
    for name, expected in (("all", [[1, 2]] * 2), ("again", [[1, 2]] * 2), ("row", [1, 2])):
        np.testing.assert_array_equal(made.fetch(name), expected)
    np.testing.assert_array_equal(made.fetch("whole"), [1, 2])
    assert (made.fetch("one"), made.fetch("B").tolist()) == (0, [0, 5])
    np.testing.assert_array_equal(made.fetch("p"), [2, 4])


def test_a_loop_over_layers_copies_no_layer_of_a_cache_but_its_own(monkeypatch):
    text = """
    dynamic { x: f32[64]; }
    volatile { k: f32[8, 64]; }
    persistent { K(l, t): f32[64] @table @fixed(l=4, t=8); t: i32; }
    block entry {
        loop layers (l in 0..4) { cache.write x >> K[l, t]; cache.read K[l] >> k; }
        cache.increment t;
    }
    """
    made = executor(text)
    for number in range(1, 4):
        step(made, x=np.full(64, number, np.float32))
        assert made._caches["K"].holds(made._frame.values[made._numbers["k"]]), "no copy"
        assert made.fetch("k")[:, 0].tolist() == [*range(1, number + 1), *[0] * (8 - number)]


@pytest.mark.parametrize(
    ("dtype", "start", "amount", "expected"),
    [
        ("i8", 127, 1, -128),
        ("u8", 250, 10, 4),
        ("i64", 2**63 - 1, 2, -(2**63) + 1),
        ("u64", 2**64 - 1, 1, 0),
        ("f32", 0.5, 3, 3.5),
        ("f64", 0.5, 3, 3.5),
        ("f16", 0.5, 3, 3.5),
        ("bf16", 0.5, 3, 3.5),
        ("f8", 0.5, 3, 3.5),
    ],
)
def test_increments_wrap_in_integers_and_add_in_floats(dtype, start, amount, expected):
    text = f"""
    persistent {{ n: {dtype} @init({start}); m: {dtype} @init({expected}); }}
    block entry {{ cache.increment {amount} n; cache.decrement {amount} m; }}
    """
    made = step(executor(text))
    assert made.fetch("n") == expected
    assert made.fetch("m") == start


def test_names_in_indices_are_looked_up_in_the_stated_order():
    # N is a size and a loop's variable: the size. r is an index of M and a persistent number.
    text = """
    dynamic { x: f32; }
    volatile { seen: f32[4, 2]; row: f32; }
    persistent { A(i): f32 @table; M(r): f32[2] @auto_dim(r); r: i32 @init(5); n: i32 @init(1);
                 R(i): f32 @table; }
    block entry {
        cache.write x >> A[N];
        loop some (n in 3..4) { cache.write x >> A[n]; }
        cache.write x >> A[n];
        cache.read M[3] >> seen;
        cache.read M[0..r] >> seen;
        cache.write x >> R[r];
    }
    """
    made = step(executor(text, {"N": 7}), x=1.0)
    assert made.fetch("A").tolist() == [0, 1, 0, 1, 0, 0, 0, 1]
    assert made.fetch("seen").shape == (3,), "r is the count inside of M"
    assert made.fetch("R").shape == (6,), "and the persistent number elsewhere"


def test_an_op_may_replace_what_a_cache_gives_in_another_shape():
    """The shape of ``rows`` is known only when the program runs, whatever writes it."""
    made = executor(
        """
        dynamic { x: f32[2]; many: f32[3, 2]; }
        volatile { rows: f32[4, 2]; before: f32[2]; after: f32[2]; }
        persistent { n: i64; A(i): f32[2] @table; }
        block entry {
            cache.write x >> A[n]; cache.increment n;
            cache.read A[0..n] >> rows; op sum_axis(rows, axes=[0]) >> before;
            op taper.NEG(many) >> rows; op sum_axis(rows, axes=[0]) >> after;
            return;
        }
        """
    )
    many = np.arange(6, dtype=np.float32).reshape(3, 2)
    for count in (1, 2):
        step(made, x=f32(1, 2), many=many)
        np.testing.assert_array_equal(made.fetch("before"), [count, 2 * count])
        np.testing.assert_array_equal(made.fetch("rows"), -many)
        np.testing.assert_array_equal(made.fetch("after"), -many.sum(0))


def test_a_bound_has_to_be_one_number():
    text = """
    volatile { n: i32; m: i32; }
    persistent { A(i): i32 @table; }
    block entry {
        cache.read A[1] >> n; cache.read A[] >> n; loop some (i in 0..n) { op add(m, m) >> m; }
    }
    """
    with pytest.raises(StepError, match=r"loop some .*: n: expected one number, got shape \(2,\)"):
        step(executor(text))


# -- failures --------------------------------------------------------------------------------------


def test_a_step_that_fails_keeps_what_its_nodes_wrote_before():
    text = """
    dynamic { x: f32; }
    volatile { y: f32 @init(1.0); }
    persistent { n: i32; A(i): f32 @table @fixed(i=2); }
    block entry {
        cache.increment n;
        op add(y, x) >> y;
        cache.write y >> A[n];
        cache.increment n;
    }
    """
    made = step(executor(text), x=4.0)
    assert made.fetch("n") == 2
    with pytest.raises(StepError, match=r"^8:9: cache.write y >> A\[n\]: A: index i:"):
        step(made, x=4.0)
    assert made.fetch("n") == 3, "what was before the node stays"
    assert made.fetch("A").tolist() == [0, 5], "the node itself changed nothing"
    with pytest.raises(StepError, match="x: expected a value for this step"):
        made.step()
    assert made.fetch("y") == 1, "the next step started anew"


def test_shapes_that_do_not_fit_name_the_op():
    text = """
    dynamic { x: f32[3]; }
    volatile { all: f32[2]; y: f32[3]; }
    persistent { M(r): f32[2] @auto_dim(r); }
    block entry { op add(x, x) >> x; cache.read M[2] >> all; op add(x, x) >> x;
                  op mul(all, x) >> y; op add(y, x) >> y; }
    """
    made = executor(text)
    with pytest.raises(StepError, match=r"^6:\d+: op mul\(all,x\) >> y: ") as caught:
        step(made, x=f32(1, 2, 3))
    assert "[4], [3]" in str(caught.value)


def test_an_interrupt_leaves_a_usable_executor(tmp_path):
    program = """
import os, signal, threading, numpy as np
from simulated import executor, step
made = executor('''
dynamic { x: f32[4]; c: bool; }
volatile { y: f32[4]; }
persistent { A(i): f32[4] @table; n: i32; }
block entry { branch c long short; }
block long { loop l (i in 0..1000000000) { op add(y, x) >> y; cache.write y >> A[3]; } }
block short { cache.increment n; cache.write x >> A[n]; }
''')
x = np.ones(4, np.float32)
for round in range(1, 4):
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        step(made, x=x, c=True)
        raise SystemExit("not interrupted")
    except KeyboardInterrupt:
        pass
    step(made, x=x, c=False)
    assert made.fetch("n") == round
    assert (made.fetch("A")[round] == 1).all()
print("usable")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": "tests/support", "PATH": ""},
    )
    assert done.stdout == "usable\n", done.stderr


def test_an_interrupt_ends_the_blocks_beside_too():
    program = """
import os, signal, threading
from simulated import executor, step
made = executor('''
dynamic { x: f32; c: bool; }
volatile { y: f32; }
block entry { yield x; await x; }
block beside { await x; branch c long short; yield x; }
block long { loop l (i in 0..1000000000) { op add(y, x) >> y; } }
block short { op add(x, x) >> y; }
''')
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    step(made, x=1.0, c=True)
    raise SystemExit("not interrupted")
except KeyboardInterrupt:
    pass
assert not [t for t in threading.enumerate() if t.name.startswith("taper-")]
print(step(made, x=1.0, c=False).fetch("y"))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": "tests/support", "PATH": ""},
        timeout=60,
    )
    assert done.stdout == "2.0\n", done.stderr


# -- the simulator itself --------------------------------------------------------------------------


def test_problems_are_all_told_before_anything_runs():
    text = """
    dynamic { x: f32[B]; }
    constant { c: f32[2]; }
    block entry { op add(x, c) >> c; branch nowhere; }
    """
    with pytest.raises(ProgramError) as caught:
        Simulator(model(c=f32(1, 2)), parse(text))
    assert len(caught.value.problems) >= 3


def test_a_strict_link_refuses_zeros_that_are_read():
    text = "volatile { v: f32[2]; y: f32[2]; } block entry { op add(v, v) >> y; }"
    assert simulator(text).program.zeros == ("v",)
    with pytest.raises(ProgramError, match="'v': expected a tensor of this name in the file"):
        simulator(text, link="strict")
    strict = simulator(text, link="strict", v=f32(1, 2)).make_executor()
    assert step(strict).fetch("y").tolist() == [2, 4]
    with pytest.raises(OpenInferError, match="link: expected one of lenient, strict, got 'other'"):
        simulator(text, link="other")


@pytest.mark.parametrize("device", available_devices())
def test_every_device_of_this_machine_computes_the_same(device):
    x = np.arange(-4, 4, dtype=np.float32).reshape(2, 4)
    made = executor(
        "stability_guard", {"B": 2, "D": 4}, device=device, bias=np.arange(4, dtype=np.float32)
    )
    np.testing.assert_allclose(step(made, x=x).fetch("y"), x + np.arange(4), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("machine", "levels", "expected"),
    [
        ("AMD64", ("baseline", "avx2"), ["Cpu", "CpuAvx", "CpuAvx2"]),
        ("x86_64", ("baseline",), ["Cpu", "CpuAvx"]),
        ("aarch64", ("baseline", "neon"), ["Cpu", "Neon"]),
    ],
)
def test_devices_follow_from_the_cpu_and_its_levels(monkeypatch, machine, levels, expected):
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("taper_openinfer.simulator.devices.available_isas", lambda: levels)
    assert available_devices() == expected


def test_a_device_that_is_not_there_is_refused_when_the_simulator_is_made(monkeypatch):
    for device, message in (
        ("Vulkan", "device 'Vulkan' is not built"),
        ("Gpu", "device: expected one of Cpu, .*, got 'Gpu'"),
        ("Neon" if "CpuAvx" in available_devices() else "CpuAvx", "this CPU lacks it"),
    ):
        with pytest.raises(OpenInferError, match=message):
            simulator("minimal", {"B": 2}, device=device)


def test_importing_the_runtime_imports_none_of_this():
    program = "import sys, taper_runtime; print(any('openinfer' in name for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize("before", ["", "op add(x, x) >> x;"])
def test_an_index_outside_is_told_in_the_words_of_the_program(before):
    made = executor(
        "dynamic { x: f32[2]; at: i64[1]; } volatile { y: f32[1]; } block entry {"
        f" {before} op taper.INDEX_SELECT(x, at, axis=0) >> y; op add(y, y) >> y; }}"
    )
    with pytest.raises(StepError) as caught:
        step(made, x=f32(1, 2), at=np.array([9]))
    column = 75 + len(before)
    assert str(caught.value) == (
        f"1:{column}: op taper.INDEX_SELECT(x,at) >> y: expected indices in [-2, 2), got 9 to 9"
    )
