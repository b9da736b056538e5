"""Values at the edge of what dtypes hold, put into the samples of the registry.

Each kind is drawn by itself: where results differ on purpose, a table says for which op, which kind
and why.
"""

import numpy as np

from op_samples import samples_of
from taper_runtime.base.errors import InputError

#: Both signs of each; NaN has none.
KINDS = ("nan", "infinity", "zero", "denormal", "largest")

#: Samples of an op that get values of one kind, at most.
SAMPLES = 15

_WEIGHTS = "who adds 0 times a weight that is NaN or infinite, for padding or the zeros between"
_PACKED = "packed weights have lanes that no result reads"
_SORTED = "an order of what is not sorted"

#: op -> the inputs that get values, and why the others do not.
INPUTS = {
    "CONV": ((0,), _WEIGHTS),
    "CONV_TRANSPOSE": ((0,), _WEIGHTS),
    "LSTM": ((0,), _PACKED),
    "GRU": ((0,), _PACKED),
    "RNN": ((0,), _PACKED),
    "SEARCHSORTED": ((1,), _SORTED),
    "ROI_ALIGN": ((0,), "boxes that are not finite are refused"),
}

_SUMS = "sums of float32 overflow where the reference's, of float64, do not or cancel"
_ORDER = "which sums a value reaches, or which overflow, depends on their order"
_EMPTY = "rows that attend nothing are 0; the reference multiplies what they would attend by 0"
_EXACT = "exact here; in torch by way of a quotient that overflows"
_VECTORS = "torch's code for vectors flushes denormals or overflows early; its scalars do not"
_MATRIX = "the reference reaches the gates by a product with an identity: infinity times 0"
_BEYOND = "rows beyond the last group are 0; the reference multiplies them by 0"
_COPIED = "what an element weighs 0 adds nothing where torch adds 0 times infinity, or the reverse"

#: What kernels compute otherwise than the evaluator: op -> kinds, why.
KERNELS_DIFFER = {
    **dict.fromkeys(
        (
            *("MATMUL", "GROUPED_MATMUL", "CONV", "CONV_TRANSPOSE", "COMPLEX_MUL"),
            *("SUM", "MEAN", "PROD", "VAR", "CUMSUM"),
            *("AVG_POOL", "ADAPTIVE_AVG_POOL", "RESAMPLE", "GRID_SAMPLE", "ROI_ALIGN"),
        ),
        (("largest",), _SUMS),
    ),
    "ATTENTION": (("nan", "infinity", "largest"), _EMPTY),
    **dict.fromkeys(("FFT", "RFFT", "IRFFT"), (("nan", "infinity", "largest"), _ORDER)),
    "INVERSE": (("infinity", "largest"), _ORDER),
    "SOLVE": (("infinity", "denormal", "largest"), _ORDER),
}

#: What evaluators compute otherwise than torch: op -> kinds, why.
TORCH_DIFFERS = {
    "LOG1P": (("denormal",), _VECTORS),
    "ERFINV": (("denormal",), _VECTORS),
    "HARDSWISH": (("largest",), _VECTORS),
    "REMAINDER": (("denormal", "largest"), _EXACT),
    "FMOD": (("denormal", "largest"), _EXACT),
    "PROD": (("denormal",), _ORDER),
    "EMBEDDING_BAG": (("nan", "largest"), "the largest is NaN if one is; torch's if it is first"),
    "ATTENTION": (("nan", "infinity", "largest"), _EMPTY),
    **dict.fromkeys(
        (
            *("MATMUL", "CONV", "CONV_TRANSPOSE", "SCATTER", "LAYER_NORM", "SUM", "MEAN", "VAR"),
            "GRID_SAMPLE",
        ),
        (("largest",), _ORDER),
    ),
    "GROUPED_MATMUL": (("nan", "infinity", "largest"), _BEYOND),
    "RESAMPLE": (("nan", "infinity", "largest"), _COPIED),
    "LSTM": (("nan", "infinity"), _MATRIX),
    "GRU": (("nan", "infinity"), _MATRIX),
    "RNN": (("nan", "infinity", "largest"), _MATRIX),
}


def edge_values(kind, dtype):
    """The values of a kind, of a float or an integer dtype; none where it has none."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return {"zero": [0], "largest": [limits.min, limits.max]}.get(kind, [])
    limits = np.finfo(dtype)
    tiny, huge = limits.smallest_subnormal, limits.max
    return {
        "nan": [np.nan],
        "infinity": [np.inf, -np.inf],
        "zero": [0.0, -0.0],
        "denormal": [tiny, -tiny, limits.tiny * dtype.type(0.75), -limits.tiny * dtype.type(0.5)],
        "largest": [huge, -huge, huge / 2],
    }[kind]


def with_edges(array, kind, rng):
    """A copy in which about a quarter of the elements are of a kind; the array where none can be.

    float16 and bfloat16, which no op computes in, stay.
    """
    if array is None or array.dtype.kind not in "fiu" or array.dtype in (np.float16, np.uint16):
        return array
    values = edge_values(kind, array.dtype)
    if not values or not array.size:
        return array
    chosen = np.asarray(rng.random(array.shape) < 0.25)
    if not chosen.any():
        chosen.flat[rng.integers(array.size)] = True
    drawn = rng.choice(np.array(values, array.dtype), array.shape)
    return np.asarray(np.where(chosen, drawn, array))


def edge_samples(op, kind, most=SAMPLES):
    """At most so many samples of an op with values of a kind in them, and what the evaluator gives.

    Integers that say where or how many something is stay: the op refuses others. So do numbers in
    blocks, which hold no other. Of Winograd's tiles all outputs are NaN where one of the elements
    that they read is NaN or infinite: those samples are left out.
    """
    samples = [s for s in samples_of(op.name) if "winograd" not in " ".join(s.formats.values())]
    step = -(-len(samples) // most)
    inputs, _ = INPUTS.get(op.name, (None, ""))
    for number in range(KINDS.index(kind) % step, len(samples), step):
        sample, rng = samples[number], np.random.default_rng([number, KINDS.index(kind)])
        attrs = op.complete(sample.attrs)
        before = [None if x is None else np.asarray(x) for x in sample.inputs]
        after = [
            x
            if (inputs is not None and i not in inputs)
            or sample.formats.get(i, "").startswith("blocks.")
            else with_edges(x, kind, rng)
            for i, x in enumerate(before)
        ]
        floats = [
            b if a is None or a.dtype.kind != "f" else a for a, b in zip(after, before, strict=True)
        ]
        for given in (after, floats):
            if all(a is b for a, b in zip(given, before, strict=True)):
                break
            try:
                with np.errstate(all="ignore"):
                    want = op.evaluate_all(given, attrs)
            except InputError:
                continue
            yield sample._replace(inputs=given), want
            break


def differs(table, op, kind):
    """Whether a table lists the kind for the op."""
    kinds, _ = table.get(op.name, ((), ""))
    return kind in kinds
