"""Calls that strangers may write: an error of Taper's, or a type that evaluation then has."""

import random
import string

import numpy as np
import pytest

from taper_openinfer.dtypes import DTYPES
from taper_openinfer.ops import OPS, evaluate, native_node, output_type
from taper_openinfer.ops.table import REQUIRED
from taper_runtime.base.errors import TaperError
from taper_runtime.ops import REGISTRY, opdef

_NAMES = [*OPS, *(f"taper.{name}" for name in REGISTRY)]
_SETTINGS = {
    name
    for settings in (*(s.settings for s in OPS.values()), *(d.attrs for d in REGISTRY.values()))
    for name in settings
}
_NUMBERS = [0, 1, -1, 2, 3, 255, 2**31, -(2**63), 2**63, 2**64, 10**30, 10**400]
_FLOATS = [0.0, 0.5, -1.5, 1e308, float("inf"), float("-inf"), float("nan")]
_WORDS = [
    "",
    "f32",
    "i64",
    "bool",
    "bf16",
    "trunc",
    "nearest",
    "ADD, MUL",
    "1, x",
    "\x1b[2J",
    "sum",
]
_MOST = 10_000  # elements of what is computed


#: What a setting of a type is mostly given.
_INTEGERS, _LISTS = (0, 1, 2, -1, 3), ([0], [1], [0, 1], [], [2, 2], [1, 1], [0, 0], [0, 2, 1])
_USUAL = {
    **dict.fromkeys(("int", "axis", "count", "value", "scalar"), _INTEGERS),
    **dict.fromkeys(("float", "bound"), (0.5, 1.0, 1e-5, 2)),
    **dict.fromkeys(("ints", "axes"), _LISTS),
    "bool": (True, False),
    "dtype": (*DTYPES,),
    "word": ("trunc", "floor", "ceil", "nearest"),
    "string": ("f32", "i64", "sum", "reduced", "nearest", "linear", "uniform"),
    "strings": ("ADD", "NEG", "NEG, TANH", ""),
    "scalars": ("1", "1, 0.5", ""),
}


def value(rng, kind):
    """A setting: mostly of its type, else anything."""
    if rng.random() < 0.85:
        return rng.choice(_USUAL[kind])
    if rng.random() < 0.3:
        return [rng.choice([*_NUMBERS, *_FLOATS, *_WORDS]) for _ in range(rng.randrange(4))]
    return rng.choice([*_NUMBERS, *_FLOATS, *_WORDS, True, None])


def call(rng):
    op = rng.choice(_NAMES)
    if rng.random() < 0.02:
        op = "".join(rng.choices(string.printable, k=rng.randrange(9)))
    definition = REGISTRY.get(op.removeprefix("taper."))
    most = OPS[op].arity if op in OPS else min(definition.inputs[1], 4) if definition else 2
    fewest = OPS[op].arity if op in OPS else definition.inputs[0] if definition else 0
    known = OPS[op].settings if op in OPS else definition.attrs if definition else {}
    settings = {
        name: value(rng, each.type)
        for name, each in known.items()
        if rng.random() < (0.9 if each.default in (REQUIRED, opdef.REQUIRED) else 0.2)
    }
    if rng.random() < 0.03:
        settings[rng.choice(sorted(_SETTINGS))] = value(rng, "int")
    allowed = [*OPS[op].dtypes, "f32"] if op in OPS else ["f32", "f32", "f32", "f64", "i64", "bool"]
    dtype = rng.choice(allowed if rng.random() < 0.9 else [*DTYPES])
    inputs = []
    shape = tuple(rng.choice([0, 1, 2, 2, 3, 4]) for _ in range(rng.randrange(4)))
    for _ in range(rng.randrange(fewest, most + 1)):
        if rng.random() < 0.15:
            shape = tuple(rng.choice([0, 1, 2, 3]) for _ in range(rng.randrange(5)))
        inputs.append((rng.choice([*DTYPES]) if rng.random() < 0.1 else dtype, shape))
    return op, inputs, settings


def outcome(op, inputs, settings):
    """What a call gives, None where that is large; and storage type and shape to expect."""
    dtype, shape = output_type(op, inputs, settings)
    dtypes, shapes = [dtype for dtype, _ in inputs], [shape for _, shape in inputs]
    native_node(op, dtypes, shapes, settings, (dtype, shape))
    if np.prod(shape, dtype=object) > _MOST:
        return None, None
    arrays = [np.ones(shape, DTYPES[dtype].storage) for dtype, shape in inputs]
    return evaluate(op, arrays, dtypes, settings, dtype), (DTYPES[dtype].storage, shape)


@pytest.mark.parametrize("seed", range(8))
def test_any_call_is_refused_or_computed(seed):
    rng = random.Random(seed)
    computed, messages = 0, []
    for _ in range(1000):
        op, inputs, settings = call(rng)
        what = f"{op!r} {inputs} {settings!r:.300}"
        try:
            got, expected = outcome(op, inputs, settings)
        except TaperError as error:
            messages.append(str(error))
            continue
        except Exception as error:
            raise AssertionError(what) from error
        if got is not None:
            assert (got.dtype, got.shape) == expected, what
            computed += 1
    assert computed > 200
    assert [message for message in messages if not message.isprintable()] == []
