"""Loops, branches, barriers and blocks beside each other in a step."""

import threading

import numpy as np
import pytest

from simulated import executor, step
from taper_openinfer import StepError
from taper_openinfer.simulator.devices import available_devices
from taper_openinfer.simulator.instructions import MAX_DEPTH


def f32(*values):
    return np.array(values, np.float32)


# -- control ---------------------------------------------------------------------------------------


def test_loops_nest_end_before_their_end_and_may_be_empty():
    text = """
    volatile { n: i32; m: i32; e: i32; one: i32; }
    constant { first: i32 @init(1); last: i32 @init(3); o: i32 @init(1); }
    block entry {
        loop a (i in 0..N) { loop b (j in first..last) { op add(n, o) >> n; } op add(m, o) >> m; }
        loop c (i in 3..3) { op add(e, o) >> e; }
        loop d (i in 4..3) { op add(e, o) >> e; }
        loop f (i in 0..9) { op add(one, o) >> one; return; op add(one, o) >> one; }
        op add(m, o) >> m;
    }
    """
    made = step(executor(text, {"N": 5}))
    assert [made.fetch(name) for name in ("n", "m", "e", "one")] == [10, 5, 0, 1]


def test_a_temporary_is_zeros_in_every_round():
    text = """
    volatile { y: f32[2]; }
    constant { one: f32[2] @init(1.0); }
    block entry {
        loop rounds (i in 0..3) {
            assign t: f32[2];
            op add(y, t) >> y;
            op add(t, one) >> t;
            op add(y, t) >> y;
        }
    }
    """
    made = executor(text)
    for _ in range(2):
        np.testing.assert_array_equal(step(made).fetch("y"), [3, 3])


def test_a_temporary_of_a_loop_around_lives_from_round_to_round():
    text = """
    volatile { y: f32[2]; }
    constant { one: f32[2] @init(1.0); }
    block entry {
        assign t: f32[2];
        loop rounds (i in 0..3) { op add(t, one) >> t; }
        op add(y, t) >> y;
    }
    """
    np.testing.assert_array_equal(step(executor(text)).fetch("y"), [3, 3])


def test_a_branch_returns_to_where_it_came_from():
    text = """
    dynamic { c: i32; }
    volatile { y: f32; }
    constant { one: f32 @init(1.0); ten: f32 @init(10.0); }
    block entry { branch c yes no; branch more; op add(y, one) >> y; }
    block yes { op add(y, one) >> y; return; op add(y, ten) >> y; }
    block no { op add(y, ten) >> y; }
    block more { op add(y, one) >> y; return; }
    """
    made = executor(text)
    assert [step(made, c=c).fetch("y") for c in (5, 0, -1)] == [3, 12, 3]


def test_branches_deeper_than_pythons_stack_are_an_error_and_leave_a_usable_executor():
    depth = 2 * MAX_DEPTH
    blocks = "".join(f"block b{n} {{ cache.increment n; branch b{n + 1}; }}" for n in range(depth))
    text = f"""
    dynamic {{ c: bool; }}
    persistent {{ n: i32; }}
    block entry {{ branch c b0 b{depth}; }}
    {blocks}
    block b{depth} {{ cache.increment n; }}
    """
    made = executor(text)
    with pytest.raises(StepError, match=f"at most {MAX_DEPTH} nested branches"):
        step(made, c=True)
    before = made.fetch("n")
    assert step(made, c=False).fetch("n") == before + 1


def test_barrier_dep_and_transfer():
    text = """
    dynamic { x: f32[2]; }
    volatile { y: f32[2]; z: f32[2]; }
    block entry {
        op add(x, x) >> y;
        barrier;
        dep after(add) before(transfer);
        transfer y >> z;
        op add(y, x) >> y;
    }
    """
    made = step(executor(text), x=f32(1, 2))
    np.testing.assert_array_equal(made.fetch("z"), [2, 4])
    np.testing.assert_array_equal(made.fetch("y"), [3, 6])


# -- threads ---------------------------------------------------------------------------------------

BESIDE = """
dynamic {{ x: f32; }}
volatile {{ y: f32; z: f32; }}
persistent {{ n: i32; A(i): f32 @table; }}
block entry {{ {before} yield x; {entry} await x; }}
block one {{ await x; {one} yield x; }}
block two {{ await x; {two} yield x; }}
"""


def beside(entry="", one="", two="", before=""):
    return executor(BESIDE.format(entry=entry, one=one, two=two, before=before))


def test_at_most_one_block_writes_what_is_awaited():
    made = step(beside(one="op add(x, x) >> x;"), x=2.0)
    assert made.fetch("x") == 4
    add = "op add(x, x) >> x;"
    for texts, who in (((add, add), "entry and one"), (("", add, add), "one and two")):
        with pytest.raises(StepError, match=f"x: expected at most one block .* got {who}"):
            step(beside(*texts), x=2.0)


def test_blocks_have_variables_of_their_own_and_hand_back_what_they_wrote():
    made = beside("op add(x, x) >> z;", "op add(x, x) >> y;", "op add(x, y) >> x;")
    for _ in range(3):
        step(made, x=3.0)
        assert [made.fetch(name) for name in "xyz"] == [3, 6, 6], "two did not see what one wrote"


def test_blocks_share_persistent_variables_without_losing_any():
    each = "loop many (i in 0..200) { cache.increment n; cache.write x >> A[n]; }"
    made = step(beside(each, each, each), x=1.0)
    assert made.fetch("n") == 600
    assert made.fetch("A").shape == (601,)


def test_what_a_block_raises_reaches_the_caller():
    before = threading.active_count()
    made = beside(before="cache.decrement n;", one="cache.write x >> A[n];")
    with pytest.raises(StepError, match=r"cache.write x >> A\[n\]: A: index i: .* got -1"):
        step(made, x=1.0)
    with pytest.raises(StepError, match="expected a value for this step"):
        made.step()
    assert threading.active_count() <= before


def test_a_second_yield_before_its_await_is_an_error():
    before = threading.active_count()
    made = beside("yield x;")
    with pytest.raises(StepError, match="yield x: expected an await before the second yield"):
        step(made, x=1.0)
    assert threading.active_count() <= before


TWICE = """
dynamic { x: f32; z: f32; }
volatile { y: f32; w: f32; }
block entry { yield x, z; await x; op add(x, x) >> y; await z; op add(y, z) >> w; }
block one { await x; op add(x, x) >> x; yield x; }
block two { await z; op add(z, z) >> z; yield z; }
"""


@pytest.mark.parametrize("device", available_devices())
def test_a_second_await_of_one_yield_has_nothing_to_wait_for(device):
    """The first one has waited for every block; a plan of the program does the same."""
    made = executor(TWICE, device=device)
    for _ in range(2):
        step(made, x=3.0, z=4.0)
        assert (made.fetch("y"), made.fetch("w")) == (12, 20)
    made.insert_dynamic("x", 3.0)
    made.insert_dynamic("z", 4.0)
    assert [event.kind for event in made.iterate() if event.block_name == "entry"] == [
        "Yield", "Await", "OpExecute", "Await", "OpExecute",
    ]  # fmt: skip
    assert made.fetch("w") == 20
    again = executor(TWICE.replace("await z; op add(y", "await x; await x; op add(y"))
    assert step(again, x=3.0, z=4.0).fetch("w") == 20


def test_an_await_before_any_yield_has_nothing_to_wait_for():
    text = """
    dynamic { x: f32; }
    volatile { y: f32; }
    block entry { await x; op add(x, x) >> y; yield x; await x; }
    block beside { await x; op add(x, x) >> x; yield x; }
    """
    made = step(executor(text), x=1.0)
    assert (made.fetch("y"), made.fetch("x")) == (2, 2)


def test_a_step_that_returns_before_its_await_waits_all_the_same():
    before = threading.active_count()
    text = """
    dynamic { x: f32; }
    volatile { y: f32; }
    block entry { yield x; }
    block beside { await x; op add(x, x) >> y; yield x; }
    """
    assert step(executor(text), x=1.0).fetch("y") == 2
    assert threading.active_count() <= before
