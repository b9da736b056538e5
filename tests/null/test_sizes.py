"""Size expressions: canonical, sound in what they decide, strict in what they parse."""

import contextvars
import math
import operator
import sys
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taper_runtime.base.errors import InputError, OpError, UnsupportedOpError
from taper_runtime.base.size_values import assuming_nonempty, ranged, size_at
from taper_runtime.base.sizes import (
    HIGH,
    LOW,
    UNBOUNDED,
    Size,
    UndecidedError,
    bounds,
    largest,
    linear,
    quotient,
    smallest,
    variable,
)
from taper_runtime.base.steps import Steps, limited
from taper_runtime.executor.size_table import SizeTable
from taper_runtime.file.expression import MAX_TEXT, parse

RANGES = {"a": (1, 4), "b": (2, 7), "c": (3, 3 + 2**20)}
KNOWN = {name: variable(name, *limits) for name, limits in RANGES.items()}
A, B, C = KNOWN.values()

values = st.fixed_dictionaries({name: st.integers(*limits) for name, limits in RANGES.items()})


def divide(x, y):
    return x // y


@st.composite
def expressions(draw, depth=3):
    """A size, and the function of the variables' values that it should be."""
    if depth == 0 or draw(st.booleans()):
        name = draw(st.sampled_from([*KNOWN, None]))
        if name is None:
            number = draw(st.integers(-9, 9))
            return number, lambda v: number
        return KNOWN[name], lambda v: v[name]
    x, f = draw(expressions(depth=depth - 1))
    y, g = draw(expressions(depth=depth - 1))
    kind = draw(st.sampled_from(["add", "sub", "mul", "min", "max", "div", "mod", "over"]))
    if kind == "over":
        low, high = bounds(y)
        return (x // y, lambda v: f(v) // g(v)) if low > 0 or high < 0 else (x, f)
    if kind in ("div", "mod"):
        d = draw(st.integers(-9, 9).filter(bool))
        if kind == "div":
            return x // d, lambda v: f(v) // d
        return x % d, lambda v: f(v) % d
    ints = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "min": min, "max": max}
    sizes = ints | {"min": smallest, "max": largest}
    return sizes[kind](x, y), lambda v: ints[kind](f(v), g(v))


@given(expressions(), values)
def test_an_expression_is_what_it_was_computed_from(made, at):
    size, function = made
    assert size_at(size, at) == function(at)
    low, high = bounds(size)
    assert low <= function(at) <= high


@given(expressions(), expressions(), values)
def test_what_is_decided_holds_for_all_sizes(one, other, at):
    (x, f), (y, g) = one, other
    if x == y:
        assert f(at) == g(at)
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        try:
            answer = compare(x, y)
        except UndecidedError:
            continue
        assert answer == compare(f(at), g(at))


@given(expressions())
def test_text_and_back(made):
    size, _ = made
    if isinstance(size, Size) and len(str(size)) <= MAX_TEXT:
        again = parse(str(size), KNOWN)
        assert again == size
        assert hash(again) == hash(size)
        assert bounds(again) == bounds(size)


@given(st.lists(expressions(), min_size=1, max_size=4), values)
def test_table_computes_what_its_sizes_are(made, at):
    table = SizeTable(RANGES)
    slots = [table.slot(size) for size, _ in made]
    known = list(table.start)
    known[: len(at)] = [at[name] for name in RANGES]
    compute = {"add": operator.add, "mul": operator.mul, "min": min, "max": max, "floordiv": divide}
    for operation, a, b, target in table.code:
        known[target] = compute[operation](known[a], known[b])
    assert [known[slot] for slot in slots] == [function(at) for _, function in made]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (A * B + 2 * A - 1, "a*b + 2*a - 1"),
        (B * A - A * B, "0"),
        (8 * A * B // (4 * A), "2*b"),
        ((8 * B + 3) // 8, "b"),
        ((B - 1) // 2 + 1, "floordiv(b + 1, 2)"),
        (B // -2, "-b + floordiv(b, 2)"),
        ((B // 2 + 1) // 2, "floordiv(b + 2, 4)"),
        ((B // 2 + A) // 2, "floordiv(2*a + b, 4)"),
        ((B - B // 2) // 2, "floordiv(3*b, 4) - floordiv(b, 2)"),
        (A - (63 * A) // 64, "1"),
        (-A % 64, "-a + 64"),
        ((2 * (B // 2) + A) // 3, "floordiv(a + 2*floordiv(b, 2), 3)"),
        (8 * A % 4, "0"),
        ((8 * B + 8) // (B + 1), "8"),
        ((A * B + B + 1) // (A + 1), "b"),
        ((3 * B + 2) // (2 * B + 1), "1"),
        (smallest(B, 99), "b"),
        (largest(smallest(B, 5), 1), "min(5, b)"),
        (A * B - A >= 0, "True"),  # its terms alone leave that open
        ((A - 1) * (B + 1) >= 0, "True"),
        (-A, "-a"),
        (variable("n", 3, 3) + 1, "4"),
    ],
)
def test_canonical_form(size, text):
    assert str(size) == text


@pytest.mark.parametrize("question", [lambda: B < 5, lambda: bool(B - 3), lambda: range(5)[B]])
def test_what_sizes_leave_open_is_an_error(question):
    with pytest.raises(UndecidedError, match="b"):
        question()


def test_bounds_look_into_quotients():
    """What each quotient may be by itself would leave all of these open."""
    a, b = A + 20, B + 20  # of 21 to 24 and 22 to 27
    assert a - (a + 1) // 2 >= 10
    assert bounds(a // 2 + (a + 1) // 2 - a) == (0, 0)
    assert 32 * b * (a - a // 2 - 1) >= 0
    assert bounds((a * b) // 3 - (a * b) // 4)[0] > 0
    assert (a // 2) // a == 0
    assert smallest(a // 2, a) == a // 2
    assert bounds((a // 2) * (a // 3) - a)[0] > 0
    n = variable("n", 1, 100)  # padded to whole windows of 4, of which 2 are left out
    assert bounds(4 * n - 4 * (3 * n // 4) - 2)[0] == 2


def test_products_of_sizes_in_whole_windows_are_compared():
    """A window's place in an image that is padded to whole windows is such a product."""
    h, w = variable("h", 1, 2**31), variable("w", 1, 2**31)
    rows, columns = (h + 3) // 4, (w + 3) // 4
    assert 16 * rows * columns >= h * w
    assert 4 * rows * columns >= columns * h
    assert 4 * rows * rows >= rows * h
    assert 4 * rows * w < h * w + 4 * w
    with pytest.raises(UndecidedError):
        assert 4 * rows * rows >= rows * h + 1


def test_a_different_structure_is_never_equal():
    assert A != 1
    assert A != B
    assert len({A, A + 0, 2 * A - A, B}) == 2


def test_affine():
    assert linear(2 * B - 3) == ("b", 2, -3)
    assert linear(B) == ("b", 1, 0)
    for size in (A * B, A + B, B * B, 5, B // 2, None):
        assert linear(size) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "5", "n", "b+a", "b + a", "1*b", "b*2", "0*b", "b - b", "(b)", "b ", "--b", "+b"),
        *("b**2", "b//2", "floordiv(b, 2", "floordiv(4*b, 2)", "floordiv(b, 0)", "min(b, 99)"),
        *(
            "min(b)",
            "max(b, 3, 4)",
            "floordiv(b, a - 1)",
            "b + 1.5",
            "b + 1e3",
            "b + \u0661",
            "b\n",
        ),
        "99999999999999999999*b",
        "min(3, " * 20 + "b" + ")" * 20,
        "a*" * 400 + "b",
        "b + " * 1000 + "1",
    ],
)
def test_parse_refuses(text):
    with pytest.raises((ValueError, OpError)):
        parse(text, KNOWN)


def test_products_of_sums_stay_small():
    with pytest.raises(OpError, match="terms"):
        math.prod([A + B + C + 1] * 40)


def test_evaluation_checks_divisors():
    """Those that are at least 1 wherever the variables are."""
    with pytest.raises(
        InputError, match=r"floordiv\(b, a\): expected a divisor of at least 1, got 0"
    ):
        size_at(B // A, {"a": 0, "b": 2})


def test_evaluation_checks_64_bits():
    with pytest.raises(InputError, match="64 bits"):
        size_at(C * C * C * C, {"c": 2**20})


def test_numbers_as_large_as_int64_are_compared():
    size = quotient(variable("s", 1, UNBOUNDED) + 3, 4) - 3
    assert smallest(size, HIGH) == size
    assert largest(size, HIGH) == HIGH
    assert largest(size, LOW) == size
    assert size < HIGH
    assert not size >= HIGH
    assert 1 - size > LOW


def test_a_variable_with_a_limit():
    """What is found among n * m things is no more than they are."""
    n, m = variable("n", 0, 100), variable("m", 1, 50)
    found = variable("found", 0, n * m)
    assert bounds(found) == (0, 5000)
    assert found <= n * m
    assert 4 * found + 8 <= 4 * n * m + 8
    assert m * found <= n * m * m
    with pytest.raises(UndecidedError):
        _ = found <= n
    of_those = variable("of_those", 0, found)
    assert of_those <= n * m
    assert n * m - of_those + found >= 0


def test_what_a_shape_with_elements_says():
    n, m, k = variable("n", 0, 9), variable("m", 0, 9), variable("k", 0, 9)
    assume = assuming_nonempty((2 * n * m, k + 1, 3))
    assert assume(n * m - 1) >= 0
    assert bounds(assume(k)) == (0, 9)  # k + 1 may be 1
    assert bounds(assume(7)) == (7, 7)
    with pytest.raises(UndecidedError):
        _ = n - 1 >= 0


def test_other_ranges():
    n = variable("n", 1, 9)
    size = (n * n + 5) // 2 + smallest(n, 5) - largest(n, 2)
    wider = ranged(size, {"n": variable("n", 0, 20)})
    assert str(wider) == str(size)
    assert [size_at(wider, {"n": value}) for value in (0, 1, 7)] == [0, 2, 25]
    assert ranged(n - 1, {"n": 1}) == 0


def sum_of_maxima(count):
    """Return maxima of unlike sums of many variables, added up."""
    names = [variable(f"v{i}", 1, 2**20) for i in range(8)]
    return sum(
        largest((2 * i + 3) * names[i % 8] + i, (5 * i + 2) * names[(3 * i + 1) % 8] + 7)
        for i in range(count)
    )


def test_a_question_that_never_ends_is_refused_by_its_steps():
    size = sum_of_maxima(40)
    with pytest.raises(
        UnsupportedOpError, match=r"expected to decide .* in at most \d+ steps"
    ) as caught:
        bounds(size)
    assert str(size)[:200] in str(caught.value)
    assert len(str(caught.value)) < 300
    assert bounds(sum_of_maxima(4))[0] > 0  # the next question has steps of its own


def test_questions_count_the_same_steps_every_time():
    def spent():
        steps = Steps(10**6, ValueError)
        with limited(steps):
            bounds(sum_of_maxima(6))
        return steps.left

    assert 0 < spent() == spent() < 10**6


def test_steps_are_of_one_context():
    def ask():
        return bounds(sum_of_maxima(6))

    with limited(Steps(0, ValueError)), ThreadPoolExecutor(1) as pool:
        assert pool.submit(ask).result() == contextvars.Context().run(ask)
        with pytest.raises(ValueError, match="v0"):
            ask()


def drawn(random, known, depth):
    """A random expression over the sizes ``known``."""
    if depth == 0:
        return random.choice([*known, random.randint(-9, 64)])
    one, other = (drawn(random, known, depth - random.randint(1, 2) // 2) for _ in range(2))
    number = random.randint(2, 64)
    makers = {
        "add": lambda: one + other, "subtract": lambda: one - other,
        "multiply": lambda: one * other,
        "least": lambda: smallest(one, other), "most": lambda: largest(one, other),
        "divide": lambda: one // number, "remainder": lambda: one % number,
    }  # fmt: skip
    return makers[random.choice([*makers])]()


def work_per_step(compute):
    """Return how many functions, of Python and of C, are called for each step; and the steps."""
    calls = 0

    def profile(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    steps = Steps(3_000, RuntimeError)
    with limited(steps):
        sys.setprofile(profile)
        try:
            compute()
        except (OpError, RuntimeError):  # too large, or spent
            pass
        finally:
            sys.setprofile(None)
    used = 3_000 - max(steps.left, 0)
    return calls / used, used


@pytest.mark.parametrize("seed", range(16))
def test_a_step_is_so_much_work_whatever_the_expression(seed):
    random = Random(seed)
    known = [variable(name, random.randint(0, 3), 2**20) for name in "abcdef"[: seed % 5 + 2]]
    per_step, used = work_per_step(lambda: bounds(drawn(random, known, 3 + seed % 3)))
    assert per_step < 15 or used < 200


@pytest.mark.parametrize("kind", ["maxima", "product"])
def test_a_step_is_so_much_work_in_long_expressions(kind):
    known = [variable(name, 1, 2**20) for name in "abcdef"]

    def sums(shift):
        pairs = [(known[i % 6] * (i + 2) + shift, known[(i + shift) % 6] * 3 + i) for i in range(9)]
        return [largest(*pair) for pair in pairs]

    def compute():
        if kind == "maxima":
            smallest(sum(sums(1)), sum(sums(2)))
        else:
            bounds(math.prod(sum(known) - i for i in range(5)) - known[0])

    per_step, used = work_per_step(compute)
    assert per_step < 15
    assert used > 1000


def test_extremes_of_variables_of_their_own_make_no_cases():
    """As many as a detector has classes, each with the best of its boxes."""
    total = sum(smallest(300, variable(f"u{i}", 0, 8732)) for i in range(90))
    with limited(Steps(2_000, ValueError)):
        assert bounds(total) == (0, 27_000)
        assert bounds(-2 * total + 5) == (-53_995, 5)


def test_a_proof_ends_at_the_first_bound_that_decides():
    """The best bound of twelve maxima that share variables tries both arguments of each."""
    parts = [variable(f"a{i}", 1, 99) for i in range(12)]
    terms = [largest(parts[i], 3 * parts[(i + 1) % 12] - 40) for i in range(12)]
    total = sum(terms)
    steps = Steps(10**6, ValueError)
    with limited(steps):
        assert total >= 12
        assert largest(total, 5) is total
    assert steps.left > 10**6 - 200
    with limited(Steps(10_000, ValueError)), pytest.raises(ValueError, match="max"):
        bounds(total)
