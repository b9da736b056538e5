"""Define random numbers: ops that draw from a generator's state and return the next state.

Numbers and next state depend only on the state. So no pass needs to treat randomness specially: two
draws have different inputs and are never merged, no draw is constant, and the next state, which is
an output of the plan, keeps the draws in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.errors import InputError
from taper_runtime.base.random_state import STATE_SIZE, MersenneTwister, check_state
from taper_runtime.base.records import NamedTuple
from taper_runtime.ops.opdef import Attr, Attrs, Cost, OpDef, TensorType
from taper_runtime.ops.type_rules import FLOATS, check_dtype, check_shape, fail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: The type of a generator's state.
STATE = TensorType("int64", (STATE_SIZE,))

#: From this limit on torch draws integers from 64 bits, so that the remainders are nearly uniform.
_LARGE_LIMIT = 2**28
#: From this length on torch shuffles with 64 bits.
_MAX_PERMUTATION = (2**32 - 1) // 20
#: The block size in which torch draws normals, if there are at least so many.
_BLOCK = 16
#: How many numbers are computed at a time; a multiple of the block size.
_PART = 1 << 16


def _uniform_words(count: int, limit: int, dtype: str) -> int:
    return count * (2 if dtype == "float64" else 1)


def _uniform(generator: MersenneTwister, count: int, limit: int, dtype: str) -> np.ndarray:
    values = np.empty(count, dtype)
    for part in _parts(values):
        if dtype == "float64":
            part[...] = generator.doubles(len(part))
        else:
            part[...] = generator.words(len(part)) & np.uint32(2**24 - 1)
            part *= np.float32(2**-24)
    return values


def _parts(values: np.ndarray) -> Iterator[np.ndarray]:
    """Yield slices of ``values`` that fit in cache with their intermediate results."""
    for start in range(0, len(values), _PART):
        yield values[start : start + _PART]


def _normal_words(count: int, limit: int, dtype: str) -> int | None:
    if count < _BLOCK:
        return None
    return _uniform_words(count + (_BLOCK if count % _BLOCK else 0), limit, dtype)


def _normal(generator: MersenneTwister, count: int, limit: int, dtype: str) -> np.ndarray:
    """Draw standard normals, from 16 on in blocks; an incomplete last block redraws the last 16."""
    if count < _BLOCK:
        return generator.normals(count)
    values = _uniform(generator, count, limit, dtype)
    whole = count - count % _BLOCK
    for part in _parts(values[:whole]):
        part[...] = _normal_blocks(part)
    if whole < count:
        values[-_BLOCK:] = _normal_blocks(_uniform(generator, _BLOCK, limit, dtype))
    return values


def _half_normal_words(count: int, limit: int, dtype: str) -> int | None:
    return None if count < _BLOCK else -(-count // _BLOCK) * _BLOCK


def _half_normal(generator: MersenneTwister, count: int, limit: int, dtype: str) -> np.ndarray:
    """Draw like :func:`_normal`, but draw nothing for elements that the last block overwrites."""
    if count < _BLOCK:
        return generator.normals(count)
    blocks = _normal_blocks(_uniform(generator, -(-count // _BLOCK) * _BLOCK, limit, dtype))
    if count % _BLOCK:
        blocks[count - _BLOCK : count] = blocks[-_BLOCK:]
    return blocks[:count]


def _normal_blocks(uniforms: np.ndarray) -> np.ndarray:
    """Convert blocks of 16 uniforms to normals: 8 radii and angles give cosines and sines."""
    number = uniforms.dtype.type
    radii, angles = np.moveaxis(uniforms.reshape(-1, 2, _BLOCK // 2), 1, 0)
    radii = np.sqrt(number(-2) * np.log(number(1) - radii))
    angles = number(2 * np.pi) * angles
    return np.stack([radii * np.cos(angles), radii * np.sin(angles)], 1).reshape(-1)


def _integer_words(count: int, limit: int, dtype: str) -> int:
    return count * (1 if 0 < limit < _LARGE_LIMIT else 2)


def _integer(generator: MersenneTwister, count: int, limit: int, dtype: str) -> np.ndarray:
    """Draw integers below ``limit``; if it is 0, any 64-bit integers."""
    values = np.empty(count, np.int64)
    for part in _parts(values):
        if 0 < limit < _LARGE_LIMIT:
            part[...] = generator.words(len(part)) % np.uint32(limit)
            continue
        drawn = generator.long_words(len(part))
        part[...] = (drawn % np.uint64(limit) if limit else drawn).view(np.int64)
    return values


def _permutation_words(count: int, limit: int, dtype: str) -> int:
    if count >= _MAX_PERMUTATION:
        raise InputError(
            f"RANDOM: expected a permutation of fewer than {_MAX_PERMUTATION} numbers, got {count}"
        )
    return max(count - 1, 0)


def _permutation(generator: MersenneTwister, count: int, limit: int, dtype: str) -> np.ndarray:
    """Shuffle by exchanging each element with itself or a later one."""
    words = generator.words(_permutation_words(count, limit, dtype))
    places = np.arange(len(words))
    others = places + words % (count - places).astype(np.uint32)
    order = list(range(count))
    for place, other in enumerate(others.tolist()):
        order[place], order[other] = order[other], order[place]
    return np.array(order, np.int64)


class _Law(NamedTuple):
    """A distribution, and how to draw from it.

    Attributes
    ----------
    dtypes : tuple of str
    words : callable
        ``(count, limit, dtype) -> words``: how many words of the generator a draw uses. None if
        that depends on a cached normal.
    draw : callable
        ``(generator, count, limit, dtype) -> count numbers``
    """

    dtypes: tuple[str, ...]
    words: Callable[[int, int, str], int | None]
    draw: Callable[[MersenneTwister, int, int, str], np.ndarray]


_LAWS = {
    "uniform": _Law(FLOATS, _uniform_words, _uniform),
    "normal": _Law(FLOATS, _normal_words, _normal),
    "half_normal": _Law(("float32",), _half_normal_words, _half_normal),
    "serial_normal": _Law(FLOATS, lambda *_: None, lambda g, count, *_: g.normals(count)),
    "integer": _Law(("int64",), _integer_words, _integer),
    "permutation": _Law(("int64",), _permutation_words, _permutation),
}


def _check(op: str, inputs: Sequence[TensorType], attrs: Attrs, dtype: str) -> None:
    if inputs[0] != STATE:
        fail(op, f"a generator's state, int64 [{STATE_SIZE}]", inputs[0])
    law = _LAWS.get(attrs["law"])
    if law is None:
        fail(op, f"a law of {', '.join(_LAWS)}", attrs["law"])
    check_dtype(op, f"numbers of law {attrs['law']}", dtype, law.dtypes)
    if attrs["limit"] < 0:
        fail(op, "a limit of at least 0", attrs["limit"])


def _infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    _check("RANDOM", inputs, attrs, attrs["dtype"])
    return TensorType(attrs["dtype"], check_shape("RANDOM", attrs["shape"]))


def _infer_next(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    _check("RANDOM_NEXT", inputs, attrs, inputs[1].dtype)
    return inputs[0]


def _check_state(inputs: Sequence[np.ndarray], attrs: Attrs) -> None:
    check_state(inputs[0])


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    shape, dtype = attrs["shape"], attrs["dtype"]
    count = TensorType(dtype, shape).size
    law = _LAWS[attrs["law"]]
    values = law.draw(MersenneTwister(inputs[0]), count, attrs["limit"], dtype)
    return values.astype(dtype, copy=False).reshape(shape)


def _evaluate_next(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    count, limit, dtype = inputs[1].size, attrs["limit"], inputs[1].dtype.name
    law = _LAWS[attrs["law"]]
    generator = MersenneTwister(inputs[0])
    words = law.words(count, limit, dtype)
    if words is None:
        law.draw(generator, count, limit, dtype)
    else:
        generator.skip(words)
    return generator.state


_ATTRS = {"law": Attr("string"), "limit": Attr("int", 0, sized=True)}

OPS = (
    OpDef(
        name="RANDOM",
        doc="Numbers drawn from the state of a generator: uniform in [0, 1), standard normal, "
        "integers below a limit (0: any), or a permutation of 0, 1, 2...",
        inputs=(1, 1),
        infer=_infer,
        evaluate=_evaluate,
        check=_check_state,
        attrs={"shape": Attr("ints", sized=True, role="shape"), "dtype": Attr("string"), **_ATTRS},
    ),
    OpDef(
        name="RANDOM_NEXT",
        doc="The state of a generator after RANDOM has drawn the second input from it.",
        inputs=(2, 2),
        infer=_infer_next,
        evaluate=_evaluate_next,
        check=_check_state,
        attrs=_ATTRS,
        cost=lambda inputs, output, attrs: Cost(inputs[1].size, 2 * output.nbytes),
    ),
)
