"""Register every op Taper knows, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.ops.registry import Registry

if TYPE_CHECKING:
    from taper_runtime.ops.opdef import OpDef

#: The modules of ops, and the names of the ops of each.
REGISTRY = Registry(
    {
        "elementwise": (
            "NEG ABS SIGN CEIL FLOOR ROUND TRUNC SQRT RSQRT RECIPROCAL EXP EXPM1 LOG LOG2 LOG10 "
            "LOG1P SIN COS TAN ASIN ACOS ATAN SINH COSH TANH ASINH ACOSH ATANH ERF ERFC ERFCX "
            "SIGMOID RELU GELU GELU_TANH SILU HARDSWISH HARDSIGMOID MISH SOFTPLUS LOGICAL_NOT "
            "BITWISE_NOT ISNAN ISINF SQUARE ADD SUB MUL DIV FLOOR_DIV TRUNC_DIV REMAINDER FMOD POW "
            "MAXIMUM MINIMUM ATAN2 LEAKY_RELU ELU EQ NE LT LE GT GE LOGICAL_AND LOGICAL_OR "
            "LOGICAL_XOR BITWISE_AND BITWISE_OR BITWISE_XOR LEFT_SHIFT RIGHT_SHIFT GCD WHERE"
        ),
        "map": "MAP",
        "matmul": "MATMUL",
        "shape": "RESHAPE TRANSPOSE PERMUTE SLICE EXPAND FLIP COPY CAT PAD",
        "gather": "EMBEDDING EMBEDDING_BAG INDEX_SELECT GATHER",
        "reduce": "SUM MEAN PROD AMAX AMIN ANY ALL VAR ARGMAX ARGMIN",
        "softmax": "SOFTMAX",
        "norm": "LAYER_NORM RMS_NORM",
        "attention": "ATTENTION",
        "convert": "CAST",
        "quant": "QUANTIZE DEQUANTIZE",
        "conv": "CONV CONV_TRANSPOSE",
        "pool": "MAX_POOL ARGMAX_POOL AVG_POOL ADAPTIVE_MAX_POOL ADAPTIVE_AVG_POOL",
        "pack": "PACK UNPACK",
        "complex_mul": "COMPLEX_MUL",
        "grouped": "GROUPED_MATMUL",
        "resample": "RESAMPLE",
        "grid_sample": "GRID_SAMPLE",
        "roi_align": "ROI_ALIGN",
        "nonzero": "NONZERO",
        "nms": "NMS",
        "creation": "ARANGE",
        "random": "RANDOM RANDOM_NEXT",
        "scatter": "SCATTER WRITE",
        "sort": "ARGSORT",
        "search": "SEARCHSORTED",
        "cumulative": "CUMSUM CUMPROD LOGCUMSUMEXP CUMMAX CUMMIN CUMARGMAX CUMARGMIN",
        "fft": "FFT RFFT IRFFT",
        "special": "ERFINV LGAMMA DIGAMMA I0 HYPOT NEXTAFTER",
        "linalg": ("INVERSE SOLVE SOLVE_TRIANGULAR CHOLESKY DET SLOGDET CHOLESKY_INFO MATRIX_EXP"),
        "decompositions": "QR SVD EIGH LU",
        "complex_linalg": (
            "COMPLEX_INVERSE COMPLEX_SOLVE COMPLEX_SOLVE_TRIANGULAR COMPLEX_CHOLESKY "
            "COMPLEX_CHOLESKY_INFO COMPLEX_DET COMPLEX_SLOGDET COMPLEX_QR COMPLEX_SVD "
            "COMPLEX_EIGH COMPLEX_LU COMPLEX_MATRIX_EXP COMPLEX_PROD COMPLEX_CUMPROD "
            "COMPLEX_LOGCUMSUMEXP EIG COMPLEX_EIG"
        ),
        "recurrent": "LSTM GRU RNN",
        "control": "IF WHILE SCAN",
        "call": "CALL CALL_DELEGATE",
    }
)


def register(op: OpDef) -> OpDef:
    """Add a user's op to the registry.

    Raises
    ------
    ValueError
        If the name is taken.
    OpError
        If an attr's type is unknown, or its default is not of that type.
    """
    if op.name in REGISTRY:
        raise ValueError(f"op {op.name!r} is registered already")
    op.check_attrs()
    REGISTRY[op.name] = op
    return op
