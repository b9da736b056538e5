"""Evaluators against torch, on the samples of the registry: dtype, shape, values, NaN, -0."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from edge_values import KINDS, SAMPLES, TORCH_DIFFERS, differs, edge_samples
from op_samples import name_of, samples_of
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.elementwise import MICROOPS

torch.set_num_threads(1)

#: float32 results may be this many units in the last place from what torch gives in float64.
ULPS = 4

#: Micro-op -> torch, where the name is not torch's in lower case.
ELEMENTWISE = {
    "NEG": torch.neg,
    "ERF": torch.erf,
    "ERFCX": torch.special.erfcx,
    "RELU": torch.relu,
    # torch's own cancel below zero, in float64 too; test_gelu_is_torchs compares with them.
    "GELU": lambda x: 0.5 * x * torch.erfc(-math.sqrt(0.5) * x),
    "GELU_TANH": lambda x: x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)),
    "SILU": F.silu,
    "HARDSWISH": F.hardswish,
    "HARDSIGMOID": F.hardsigmoid,
    "MISH": F.mish,
    "SOFTPLUS": F.softplus,
    "DIV": torch.true_divide,
    "FLOOR_DIV": torch.floor_divide,
    "TRUNC_DIV": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "LEAKY_RELU": lambda x, slope: torch.where(x > 0, x, x * slope),
    "LEFT_SHIFT": torch.bitwise_left_shift,
    "RIGHT_SHIFT": torch.bitwise_right_shift,
    # torch's of the lowest integer is negative
    "GCD": lambda a, b: torch.gcd(a, b).abs(),
    "ELU": lambda x, alpha: torch.where(x > 0, x, alpha * torch.expm1(x)),
}

#: What no torch op takes in integers, traps on, or leaves open.
DIVISIONS = ("FLOOR_DIV", "TRUNC_DIV", "REMAINDER", "FMOD")
EITHER_ZERO = ("MAXIMUM", "MINIMUM")

#: Ops whose results are sums of products.
SUMS = ("MATMUL", "CONV", "CONV_TRANSPOSE")


def torch_micro(name):
    return ELEMENTWISE.get(name) or getattr(torch, name.lower())


def operands(op, sample):
    """The sample's operands as arrays of one dtype, a scalar as one of rank 0."""
    arrays = list(sample.inputs)
    index = sample.attrs.get("scalar_index", -1)
    if index != -1:
        dtype = np.bool_ if op.name == "WHERE" and index == 0 else arrays[-1].dtype
        arrays.insert(index, np.asarray(sample.attrs["scalar"], dtype))
    return arrays


def assert_within_ulps(got, want, ulps):
    """``want`` is float64: it is rounded to what ``got`` is. NaN, infinities and signs agree."""
    with np.errstate(over="ignore"):
        rounded = want.astype(got.dtype)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(rounded))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(rounded))
    numbers = np.isfinite(rounded)
    signed = ~np.isnan(got)
    np.testing.assert_array_equal(np.signbit(got[signed]), np.signbit(rounded[signed]))
    error = np.abs(got[numbers].astype(np.float64) - rounded[numbers])
    assert (error <= ulps * np.spacing(np.abs(rounded[numbers]))).all(), error.max()


def traps(a, b):
    """Where torch cannot divide integers: by zero, and the lowest by -1."""
    return (b == 0) | ((b == -1) & (a == np.iinfo(a.dtype).min if b.dtype.kind == "i" else False))


@pytest.mark.parametrize("op", [REGISTRY[name] for name in MICROOPS], ids=name_of)
def test_micro_op(op):
    served = 0
    for sample in samples_of(op.name):
        arrays = operands(op, sample)
        dtype = arrays[-1].dtype
        if op.name in DIVISIONS and dtype.kind in "iu":
            arrays = list(np.broadcast_arrays(*arrays))
            keep = ~traps(*arrays)
            arrays = [x[keep] for x in arrays]
            got = op.evaluate(arrays, op.complete({}))
        else:
            got = op.evaluate(sample.inputs, op.complete(sample.attrs))
        wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in arrays]
        want = torch_micro(op.name)(*map(torch.from_numpy, map(np.array, wide))).numpy()
        if got.dtype == np.float32:
            if op.name in EITHER_ZERO:
                got, want = got + np.float32(0), want + 0.0
            assert_within_ulps(got, want, ULPS)
        else:
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-14 if dtype == np.float64 else 0)
        served += 1
    assert served


@pytest.mark.parametrize("name", [name for name, op in MICROOPS.items() if "float32" in op.dtypes])
def test_micro_op_has_torchs_special_values(name):
    """What torch gives in float32 itself for pairs of NaN, infinities, zeros and ones."""
    arity = MICROOPS[name].arity
    values = [0.0, -0.0, 1.0, -1.0, 2.5, np.nan, np.inf, -np.inf]
    arrays = [
        np.array(column, np.float32)
        for column in zip(*itertools.product(values, repeat=min(arity, 2)), strict=True)
    ]
    if arity == 3:
        arrays.insert(0, np.arange(arrays[0].size) % 3 == 0)
    got = REGISTRY[name].evaluate(arrays, REGISTRY[name].complete({}))
    want = torch_micro(name)(*map(torch.from_numpy, arrays)).numpy()
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
    if got.dtype == np.float32 and name not in EITHER_ZERO:
        zero = want == 0
        np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


def test_steps_are_rounded_once():
    """What takes several steps takes them in float64."""
    x = np.linspace(-4, 4, 999, dtype=np.float32)
    for name in ("GELU", "GELU_TANH", "SILU", "SOFTPLUS", "MISH", "SIGMOID", "ERF", "HARDSWISH"):
        got = REGISTRY[name].evaluate([x], REGISTRY[name].complete({}))
        want = torch_micro(name)(torch.from_numpy(x.astype(np.float64))).numpy()
        np.testing.assert_allclose(got, want.astype(np.float32), rtol=np.finfo(np.float32).eps)


@pytest.mark.parametrize(("name", "approximate"), [("GELU", "none"), ("GELU_TANH", "tanh")])
def test_gelu_is_torchs(name, approximate):
    x = np.linspace(-9, 9, 999)
    got = REGISTRY[name].evaluate([x], REGISTRY[name].complete({}))
    want = F.gelu(torch.from_numpy(x), approximate=approximate).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-14, atol=2e-15)


# -- the others: a torch function of the inputs and complete attrs


def reduction(function):
    """A torch reduction over several dims; over none it is taken one element at a time."""

    def call(x, a):
        axes = tuple(a["axes"])
        y = function(x[..., None] if not axes else x, axes or (-1,), a["keepdim"])
        return y.squeeze(-1) if not axes and a["keepdim"] else y

    return call


def product(x, axes, keepdim):
    for axis in reversed(axes):
        x = torch.prod(x, axis, keepdim)
    return x


def summed(x, attrs):
    """An operand of a product, in the dtype of its sums."""
    return x.to(getattr(torch, attrs["accumulate"])) if attrs["accumulate"] else x


def wide_of_integers(x, attrs):
    """Integers in float64, where their sums are exact: torch convolves no integers."""
    return x.double() if attrs["accumulate"] else x


def rounded_in_groups(a, group):
    """Return numbers as int8 has them, with one scale for each group along the last axis."""
    x = a.float().unflatten(-1, (-1, group))
    largest = x.abs().amax(-1, keepdim=True)
    largest = torch.where(largest < 2.0**-100, 0, largest)
    levels = torch.where(largest == 0, 0, torch.round(x * (127 / largest)))
    return (levels.to(a.dtype) * (largest / 127)).flatten(-2)


def matmul(a, b, *extras, attrs):
    b = b.view(torch.bfloat16) if b.dtype == torch.uint16 else b
    a = summed(a, attrs)
    if attrs["activation_group"]:
        a = rounded_in_groups(a, attrs["activation_group"])
    if attrs["activation_dtype"]:
        a = a.float().to(getattr(torch, attrs["activation_dtype"])).to(a.dtype)
    b = b.to(a.dtype)
    y = a @ (b.transpose(-1, -2) if attrs["transpose_b"] else b)
    if attrs["alpha"] != 1:
        y = y * attrs["alpha"]
    return epilogue(y, extras, attrs)


def embedding(weight, index, attrs):
    return weight[index.long()]


def embedding_bag(weight, indices, offsets, *rest):
    *factors, attrs = rest
    padding = attrs["padding"] if attrs["padding"] >= 0 else None
    return torch.nn.functional.embedding_bag(
        indices, weight, offsets, mode=attrs["mode"], padding_idx=padding,
        per_sample_weights=factors[0] if factors else None,
    )  # fmt: skip


def epilogue(y, extras, attrs):
    values, args = [y, *extras], list(attrs["args"])
    for name in attrs["code"]:
        op, _, to = name.partition(":")
        count = 1 if op == "CAST" else MICROOPS[op].arity
        given, args = args[:count], args[count:]
        taken = [values[v] if v >= 0 else torch.tensor(attrs["scalars"][-1 - v]) for v in given]
        values.append(taken[0].to(getattr(torch, to)) if op == "CAST" else torch_micro(op)(*taken))
    return values[-1]


def spatial(n, name):
    """``torch.nn.functional``'s function for n spatial dims."""
    return getattr(F, f"{name}{n}d")


def channels_first(x):
    return x.movedim(-1, 1)


def pad(x, padding, value=0.0):
    """``x`` with pairs of padding per spatial dim, channels last; negative pairs cut."""
    pairs = [padding[i : i + 2] for i in range(0, len(padding), 2)]
    return F.pad(x, [0, 0, *itertools.chain(*reversed(pairs))], value=value)


def torch_weight(weight):
    """``[O, C/groups, *kernel]``."""
    return weight.movedim((-1, -2), (0, 1))


def conv(x, weight, *extras, attrs):
    x, weight = wide_of_integers(x, attrs), wide_of_integers(torch_weight(weight), attrs)
    x = channels_first(pad(x, attrs["padding"], attrs["border"]))
    if 0 in (x.shape[0], x.shape[1], weight.shape[0]):  # torch refuses some of these
        size = [
            (n - d * (k - 1) - 1) // s + 1
            for n, k, s, d in zip(
                x.shape[2:], attrs["kernel"], attrs["stride"], attrs["dilation"], strict=True
            )
        ]
        y = torch.zeros(x.shape[0], *size, weight.shape[0], dtype=x.dtype)
    else:
        y = spatial(x.ndim - 2, "conv")(
            x, weight, None, attrs["stride"], 0, attrs["dilation"], attrs["groups"]
        ).movedim(1, -1)
    return epilogue(summed(y, attrs), extras, attrs)


def conv_transpose(x, weight, *extras, attrs):
    groups = attrs["groups"]
    x, weight = wide_of_integers(x, attrs), wide_of_integers(torch_weight(weight), attrs)
    # torch's weight is [C, O/groups, *kernel]
    weight = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    if x.numel():
        y = spatial(x.ndim - 2, "conv_transpose")(
            channels_first(x), weight, None, attrs["stride"], 0, 0, groups, attrs["dilation"]
        ).movedim(1, -1)
    else:
        size = [
            (n - 1) * s + d * (k - 1) + 1
            for n, k, s, d in zip(
                x.shape[1:-1], attrs["kernel"], attrs["stride"], attrs["dilation"], strict=True
            )
        ]
        y = torch.zeros(x.shape[0], *size, weight.shape[1] * groups, dtype=x.dtype)
    return epilogue(pad(summed(y, attrs), [-p for p in attrs["padding"]]), extras, attrs)


def max_pool(x, a):
    if 0 in (x.shape[0], x.shape[-1]):
        x, empty = torch.zeros(1, *x.shape[1:-1], 1, dtype=x.dtype), x.shape
        return max_pool(x, a).expand(empty[0], *[-1] * (x.ndim - 2), empty[-1])
    lowest = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    x = channels_first(pad(x, a["padding"], lowest))
    pooled = spatial(x.ndim - 2, "max_pool")(x, a["kernel"], a["stride"], 0, a["dilation"])
    return pooled.movedim(1, -1)


def argmax_pool(x, a):
    if 0 in (x.shape[0], x.shape[-1]):
        return max_pool(x, a).long()
    x = x.double()
    padded = pad(torch.where(x == -math.inf, -1e308, x), a["padding"], -math.inf)
    pool = spatial(x.ndim - 2, "max_pool")
    window = (a["kernel"], a["stride"], 0, a["dilation"])
    _, places = pool(channels_first(padded), *window, return_indices=True)
    at = torch.stack(torch.unravel_index(places, padded.shape[1:-1]))
    lows = torch.tensor(a["padding"][::2]).reshape(-1, *[1] * places.ndim)
    result = torch.zeros_like(places)
    for size, position in zip(x.shape[1:-1], at - lows, strict=True):
        result = result * size + position
    return result.movedim(1, -1)


def window_sums(x, a):
    """Sums over the windows that fit, ``[N, *out, C]``."""
    for d, (size, step) in enumerate(zip(a["kernel"], a["stride"], strict=True)):
        x = x.unfold(1 + d, size, step)
    return x.sum(tuple(range(-len(a["kernel"]), 0)))


def avg_pool(x, a):
    sums = window_sums(pad(x, a["padding"]), a)
    rest = [p - c for p, c in zip(a["padding"], a["counted"], strict=True)]
    counted = pad(pad(torch.ones_like(x), a["counted"], 1.0), rest)
    return sums / (a["divisor"] or window_sums(counted, a))


def adaptive(name):
    def call(x, a):
        if 0 in (*x.shape, *a["sizes"]):
            return torch.zeros(x.shape[0], *a["sizes"], x.shape[-1], dtype=x.dtype)
        pooled = spatial(x.ndim - 2, f"adaptive_{name}_pool")(channels_first(x), a["sizes"])
        return pooled.movedim(1, -1)

    return call


def grid_sample(x, grid, a):
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(a["mode"], a["mode"])
    if a["channels_first"]:
        return torch.nn.functional.grid_sample(x, grid, mode, a["padding"], a["align_corners"])
    if not x.numel():
        return torch.zeros(*grid.shape[:-1], x.shape[-1], dtype=x.dtype)
    y = torch.nn.functional.grid_sample(
        channels_first(x), grid, mode, a["padding"], a["align_corners"]
    )
    return y.movedim(1, -1)


def resample_part(x, a):
    """Resample an image of zeros but for x, which lies where gradients of the range are."""
    whole, shape, cuts = {**a, "part": ()}, list(x.shape), [slice(None)] * x.ndim
    for axis, old, first, stop in zip(a["axes"], *(a["part"][i::3] for i in range(3)), strict=True):
        shape[axis], cuts[axis] = old, slice(first, stop)
    probe = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    y = resample(probe, whole)[tuple(cuts)]
    y.backward(torch.rand_like(y))
    places = []
    for axis, size in enumerate(x.shape):
        read = probe.grad.movedim(axis, 0).flatten(1).abs().sum(1).nonzero()
        low = int(read[0]) if axis in a["axes"] else 0
        places.append(slice(low, low + size))
    image = torch.zeros(shape, dtype=x.dtype)
    image[tuple(places)] = x
    return resample(image, whole)[tuple(cuts)]


def resample(x, a):
    """Along the last of the axes, as one dim of an image whose other dim has one element."""
    if a["part"]:
        return resample_part(x, a)
    *others, axis = a["axes"]
    *sizes, size = a["sizes"]
    *scales, scale = a["scales"]
    scale = scale or None
    moved = x.movedim(axis, -1)
    rows = moved.reshape(1, -1, 1, moved.shape[-1])
    aten = torch.ops.aten
    if not x.numel():
        y = torch.zeros(*moved.shape[:-1], size, dtype=x.dtype)
    elif a["mode"].startswith("nearest"):
        op = aten.upsample_nearest1d if a["mode"] == "nearest" else aten._upsample_nearest_exact1d
        if x.dtype in (torch.uint8, torch.float32, torch.float64):
            y = op(rows[:, :, 0], [size], scale)
        else:
            y = op(rows[:, :, 0].double(), [size], scale).to(x.dtype)
    elif a["mode"] == "linear" and x.dtype != torch.uint8:
        y = aten.upsample_linear1d(rows[:, :, 0], [size], a["align_corners"], scale)
    else:
        op = {
            "linear": aten.upsample_bilinear2d,
            "cubic": aten.upsample_bicubic2d,
            "linear-antialias": aten._upsample_bilinear2d_aa,
            "cubic-antialias": aten._upsample_bicubic2d_aa,
        }[a["mode"]]
        y = op(rows, [1, size], a["align_corners"], None, scale)
    y = y.reshape(*moved.shape[:-1], size).movedim(-1, axis)
    return resample(y, a | {"axes": others, "sizes": sizes, "scales": scales}) if others else y


def attention(q, k, v, mask=None, *scales, attrs):
    rank = q.ndim
    if scales:
        k, v = (x * scale for x, scale in zip((k, v), scales, strict=True))
    k, v = (x.view(torch.bfloat16) if x.dtype == torch.uint16 else x for x in (k, v))
    k, v = k.to(q.dtype), v.to(q.dtype)
    if mask is None:
        mask = torch.zeros((), dtype=q.dtype)
    elif mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, -torch.inf).to(q.dtype)
    mask = mask.expand(*q.shape[:-1], k.shape[-2])
    q, k, v, mask = (x if rank == 4 else x[:, None] for x in (q, k, v, mask))
    if attrs["causal"]:
        ones = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
        mask = mask.masked_fill(~ones.tril(attrs["diagonal"]), -torch.inf)
    gqa = q.shape[1] != k.shape[1]
    y = F.scaled_dot_product_attention(q, k, v, mask, scale=attrs["scale"], enable_gqa=gqa)
    y = y.transpose(1, 2) if attrs["transpose_output"] else y
    return y if rank == 4 else y[:, 0]


def norm(x, *parameters, attrs):
    shape = x.shape[x.ndim - attrs["dims"] :]
    return F.layer_norm(x, shape, *parameters, eps=attrs["eps"])


def reduce_scatter(x, index, src, a):
    index = index.long() % x.shape[a["axis"]]
    if a["reduce"] == "none":
        return x.scatter(a["axis"], index, src)
    if x.dtype == torch.bool:
        return x.int().scatter_reduce(a["axis"], index, src.int(), a["reduce"]).bool()
    return x.scatter_reduce(a["axis"], index, src, a["reduce"])


def take(x, index, a):
    index = index.long() % x.shape[a["axis"]] if x.shape[a["axis"]] else index.long()
    y = x.index_select(a["axis"], index.flatten())
    return y.unflatten(a["axis"], index.shape) if index.ndim else y.squeeze(a["axis"])


def grouped_matmul(a, b, ends, attrs):
    groups = torch.bucketize(torch.arange(len(a)), ends.long(), right=True)
    b = torch.cat([b, b.new_zeros(1, *b.shape[1:])])  # of the rows beyond the last end
    return torch.einsum("mk,mkn->mn", a, b[groups])


def unpacked(w, rows):
    """[ceil(rows/16), gates, K, 16] as torch has it, [gates * rows, K]."""
    blocks, gates, k, width = w.shape
    return w.permute(1, 0, 3, 2).reshape(gates, blocks * width, k)[:, :rows].flatten(0, 1)


def lstm(gates, h, c, w_hh, *w_hr, a):
    weights = [unpacked(w_hh, c.shape[1]), *(unpacked(w, h.shape[1]) for w in w_hr)]
    return recurrent(torch.lstm, gates, [h, c], weights, False, a)


def recurrent(layer, gates, state, weights, has_biases, a):
    """A layer of torch's, step by step, with inputs that are the gates themselves.

    h after each step, and the other state after the last.
    """
    width = gates.shape[2]
    results = {}
    if not state[0].numel():
        return torch.zeros(*gates.shape[:2], state[0].shape[1], dtype=gates.dtype), *state[1:]
    for t in range(len(gates))[:: -1 if a["reverse"] else 1]:
        given = [s[None] for s in state]
        params = [torch.eye(width, dtype=gates.dtype), *weights]
        hx = tuple(given) if len(given) == 2 else given[0]
        _, *after = layer(gates[t : t + 1], hx, params, has_biases, 1, 0.0, False, False, False)
        state = [s[0] for s in after]
        results[t] = state[0]
    sequence = [results[t] for t in sorted(results)]
    return torch.stack(sequence) if sequence else gates[:, :, : state[0].shape[1]], *state[1:]


def gru(gates, h, w, b_hn, a):
    w = unpacked(w, h.shape[1])
    zeros = w.new_zeros(len(w))
    bias = torch.cat([zeros[: 2 * len(b_hn)], b_hn])
    return recurrent(torch.gru, gates, [h], [w, zeros, bias], True, a)


def with_borders(x, a):
    """Padded positions say which elements: torch pads not all dtypes."""
    for axis, low, high in zip(a["axes"], a["low"], a["high"], strict=True):
        places = torch.arange(x.shape[axis]).double()[None]
        places = F.pad(places, (low, high), mode=a["mode"])[0].long()
        x = x.index_select(axis, places)
    return x


OTHERS = {
    "ARANGE": lambda a: torch.arange(a["start"], a["stop"], a["step"]),
    "LSTM": lambda *x: lstm(*x[:-1], a=x[-1]),
    "GRU": gru,
    "RNN": lambda gates, h, w, a: recurrent(
        getattr(torch, f"rnn_{a['activation']}"), gates, [h], [unpacked(w, h.shape[1])], False, a
    ),
    "SEARCHSORTED": lambda rows, values, a: torch.searchsorted(rows, values, right=a["right"]),
    "LOGCUMSUMEXP": lambda x, a: torch.logcumsumexp(x, a["axis"]),
    "CUMMAX": lambda x, a: torch.cummax(x, a["axis"])[0],
    "CUMMIN": lambda x, a: torch.cummin(x, a["axis"])[0],
    "CUMARGMAX": lambda x, a: torch.cummax(x, a["axis"])[1],
    "CUMARGMIN": lambda x, a: torch.cummin(x, a["axis"])[1],
    "ERFINV": lambda x, a: torch.erfinv(x),
    "LGAMMA": lambda x, a: torch.lgamma(x),
    "DIGAMMA": lambda x, a: torch.digamma(x),
    "I0": lambda x, a: torch.i0(x),
    "HYPOT": lambda x, y, a: torch.hypot(x, y),
    "NEXTAFTER": lambda x, y, a: torch.nextafter(x.float(), y.float()).double(),
    "MATMUL": lambda *x: matmul(*x[:-1], attrs=x[-1]),
    "ATTENTION": lambda *x: attention(*x[:-1], attrs=x[-1]),
    "UNPACK": lambda x, a: x,
    "CONV": lambda *x: conv(*x[:-1], attrs=x[-1]),
    "CONV_TRANSPOSE": lambda *x: conv_transpose(*x[:-1], attrs=x[-1]),
    "MAX_POOL": max_pool,
    "ARGMAX_POOL": argmax_pool,
    "AVG_POOL": avg_pool,
    "ADAPTIVE_MAX_POOL": adaptive("max"),
    "ADAPTIVE_AVG_POOL": adaptive("avg"),
    "RESAMPLE": resample,
    "GRID_SAMPLE": grid_sample,
    "SOFTMAX": lambda x, a: (F.log_softmax if a["log"] else F.softmax)(x, a["axis"]),
    "LAYER_NORM": lambda *x: norm(*x[:-1], attrs=x[-1]),
    "RMS_NORM": lambda x, *r: F.rms_norm(
        x, x.shape[x.ndim - r[-1]["dims"] :], *r[:-1], eps=r[-1]["eps"]
    ),
    "SUM": reduction(lambda x, d, k: torch.sum(x, d, k, dtype=x.dtype)),
    "MEAN": reduction(torch.mean),
    "PROD": reduction(lambda x, d, k: product(x, d, k).to(x.dtype)),
    "AMAX": reduction(torch.amax),
    "AMIN": reduction(torch.amin),
    "ANY": reduction(torch.any),
    "ALL": reduction(torch.all),
    "VAR": lambda x, a: reduction(
        lambda y, d, k: torch.var(y, d, correction=a["correction"], keepdim=k)
    )(x, a),
    "ARGMAX": lambda x, a: torch.argmax(x, a["axis"], a["keepdim"]),
    "ARGMIN": lambda x, a: torch.argmin(x, a["axis"], a["keepdim"]),
    "CUMSUM": lambda x, a: torch.cumsum(x, a["axis"], dtype=x.dtype),
    "CUMPROD": lambda x, a: torch.cumprod(x, a["axis"], dtype=x.dtype),
    "RESHAPE": lambda x, a: x.reshape(a["shape"]),
    "TRANSPOSE": lambda x, a: x.transpose(a["axis0"], a["axis1"]),
    "PERMUTE": lambda x, a: x.permute(a["axes"]),
    "SLICE": lambda x, a: torch.ops.aten.slice(x, a["axis"], a["start"], a["stop"], a["step"]),
    "EXPAND": lambda x, a: x.expand(a["shape"]),
    "FLIP": lambda x, a: x.flip(a["axes"]),
    "COPY": lambda x, a: x.clone(),
    "CAT": lambda *x: torch.cat(x[:-1], x[-1]["axis"]),
    "PAD": with_borders,
    "EMBEDDING": embedding,
    "EMBEDDING_BAG": embedding_bag,
    "GROUPED_MATMUL": grouped_matmul,
    "INDEX_SELECT": take,
    "GATHER": lambda x, index, a: torch.gather(
        x, a["axis"], index.long() % max(x.shape[a["axis"]], 1)
    ),
    "SCATTER": reduce_scatter,
    "WRITE": lambda x, places, src, a: x.index_copy(
        a["axis"],
        places.long().flatten() % max(x.shape[a["axis"]], 1),
        src.reshape(*x.shape[: a["axis"]], places.numel(), *x.shape[a["axis"] + 1 :]),
    ),
    "ARGSORT": lambda x, a: torch.argsort(
        x, dim=a["axis"], descending=a["descending"], stable=True
    ).narrow(a["axis"], 0, x.shape[a["axis"]] if a["count"] == -1 else a["count"]),
}


#: Compared as ATen ops: factors by what they make, draws by their seed, loops by what they run.
ELSEWHERE = {
    "test_lowering_linalg.py": """
        CHOLESKY CHOLESKY_INFO DET EIGH INVERSE LU MATRIX_EXP QR SLOGDET SOLVE SOLVE_TRIANGULAR SVD
    """,
    "test_complex_linalg.py": """
        COMPLEX_CHOLESKY COMPLEX_CHOLESKY_INFO COMPLEX_DET COMPLEX_EIG COMPLEX_EIGH COMPLEX_INVERSE
        COMPLEX_LU COMPLEX_MATRIX_EXP COMPLEX_PROD COMPLEX_QR COMPLEX_SLOGDET COMPLEX_SOLVE
        COMPLEX_SOLVE_TRIANGULAR COMPLEX_SVD EIG
    """,
    "test_random.py": "RANDOM RANDOM_NEXT",
    "test_fft.py": "FFT IRFFT RFFT",
    "test_complex.py": "COMPLEX_CUMPROD COMPLEX_LOGCUMSUMEXP COMPLEX_MUL",
    "test_data_sizes.py": "NMS NONZERO",
    "../e2e/test_detectors.py": "ROI_ALIGN",
    "test_lowering_quantized.py": "QUANTIZE DEQUANTIZE",
    "../null/test_formats.py": "PACK",
    "test_keep.py": "CALL CALL_DELEGATE",
    "test_lowering_control_flow.py": "IF SCAN WHILE",
}


def test_every_op_is_compared():
    elsewhere = {op for names in ELSEWHERE.values() for op in names.split()}
    assert REGISTRY.keys() == MICROOPS.keys() | OTHERS.keys() | elsewhere | {"CAST", "MAP"}


#: Ops that compute places in the floats of their inputs, which decide what is read.
PLACED = ("RESAMPLE", "GRID_SAMPLE")


@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")
@pytest.mark.parametrize("name", OTHERS)
def test_op(name):
    op = REGISTRY[name]
    for sample in samples_of(op.name):
        attrs = op.complete(sample.attrs)
        if name == "ATTENTION" and not attrs["safe_softmax"]:
            continue  # torch's is safe
        results = op.evaluate_all(sample.inputs, attrs)
        # Positions are rounded as values are.
        wide = np.float32 if name in PLACED else np.float64
        arrays = [
            torch.from_numpy(x.astype(wide) if x.dtype == np.float32 else x)
            if x is not None
            else None
            for x in sample.inputs
        ]
        wanted = OTHERS[name](*arrays, attrs)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        for got, want in zip(results, wanted, strict=True):
            assert_is(got, want.numpy(), wide, name in SUMS)


def assert_is(got, want, wide, is_sum):
    """``want`` is torch's, computed in ``wide`` floats where ``got`` is of float32.

    Terms of sums cancel, so that their order moves a small one by bits of the largest.
    """
    assert got.shape == want.shape
    if got.dtype == np.float32:
        assert want.dtype == wide
        with np.errstate(over="ignore"):
            want = want.astype(np.float32)
        scale = np.abs(want[np.isfinite(want)]).max(initial=1e-30)
        near = 1e-6 if wide == np.float64 else 1e-5  # torch then sums in float32, too
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=near * scale)
    else:
        assert got.dtype == want.dtype
        near = 1e-15 * np.abs(want[np.isfinite(want)]).max(initial=0) if is_sum else 0
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=near)


@np.errstate(all="ignore")
def compare_at_the_edge(op, kind, most=SAMPLES):
    """Compare samples with values of a kind with torch, in float64."""
    for sample, results in edge_samples(op, kind, most):
        attrs = op.complete(sample.attrs)
        if op.name in MICROOPS:
            arrays = operands(op, sample)
            if op.name in DIVISIONS and arrays[-1].dtype.kind in "iu":
                arrays = list(np.broadcast_arrays(*arrays))
                keep = ~traps(*arrays)
                arrays = [x[keep] for x in arrays]
                results = (op.evaluate(arrays, op.complete({})),)
            wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in arrays]
            want = torch_micro(op.name)(*map(torch.from_numpy, map(np.array, wide))).numpy()
            (got,) = results
            if got.dtype == np.float32:
                if op.name in EITHER_ZERO:
                    got, want = got + np.float32(0), want + 0.0
                assert_within_ulps(got, want, ULPS)
            else:
                np.testing.assert_allclose(got, want, rtol=1e-13 if got.dtype.kind == "f" else 0)
        elif op.name != "ATTENTION" or attrs["safe_softmax"]:
            wide = np.float32 if op.name in PLACED else np.float64
            arrays = [
                None if x is None
                else torch.from_numpy(np.array(x, wide) if x.dtype == np.float32 else np.array(x))
                for x in sample.inputs
            ]  # fmt: skip
            wanted = OTHERS[op.name](*arrays, attrs)
            wanted = wanted if isinstance(wanted, tuple) else (wanted,)
            for got, want in zip(results, wanted, strict=True):
                assert_is(got, want.numpy(), wide, op.name in SUMS)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")
@pytest.mark.parametrize("name", [*MICROOPS, *OTHERS])
def test_op_at_the_edge(name):
    """NaN, infinities, signed zeros, denormals and the largest numbers."""
    for kind in KINDS:
        if not differs(TORCH_DIFFERS, REGISTRY[name], kind):
            compare_at_the_edge(REGISTRY[name], kind)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")
@pytest.mark.parametrize("name", TORCH_DIFFERS)
def test_differences_that_are_listed_are_there(name):
    kinds, why = TORCH_DIFFERS[name]
    for kind in kinds:
        try:
            compare_at_the_edge(REGISTRY[name], kind, 10**6)
        except AssertionError:
            continue
        raise AssertionError(f"{name} of {kind} is as in torch: {why}")
