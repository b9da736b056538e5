"""Tell why an op is not timed, or may be slower than torch."""

#: Ops without a case, and why.
NOT_TIMED = {
    "RESHAPE": "moves nothing",
    "COPY": "is a part of others",
    "PACK": "runs when a model is exported or opened",
    "UNPACK": "runs when weights are read",
    "ARANGE": "takes no input, so an export computes it; beside an addition above",
    "RANDOM_NEXT": "is a part of RANDOM",
    **dict.fromkeys(("NMS", "ROI_ALIGN"), "is torchvision's"),
    **dict.fromkeys(("QUANTIZE", "DEQUANTIZE"), "a part of products, or elementwise ops"),
    "GROUPED_MATMUL": "torch has it in bfloat16 alone",
    "COMPLEX_MUL": "above as a product of complex numbers",
    "CHOLESKY_INFO": "as CHOLESKY",
    **dict.fromkeys(("CUMARGMAX", "CUMARGMIN"), "with CUMMAX and CUMMIN above"),
    **dict.fromkeys(("IF", "WHILE", "SCAN"), "runs blocks, whose ops are above"),
    **dict.fromkeys(("CALL", "CALL_DELEGATE"), "runs other people's code"),
    **dict.fromkeys(
        (
            *("COMPLEX_INVERSE", "COMPLEX_SOLVE", "COMPLEX_SOLVE_TRIANGULAR", "COMPLEX_CHOLESKY"),
            *("COMPLEX_CHOLESKY_INFO", "COMPLEX_DET", "COMPLEX_SLOGDET", "COMPLEX_QR"),
            *("COMPLEX_SVD", "COMPLEX_EIGH", "COMPLEX_LU", "COMPLEX_MATRIX_EXP", "EIG"),
            *("COMPLEX_EIG", "COMPLEX_PROD", "COMPLEX_CUMPROD", "COMPLEX_LOGCUMSUMEXP"),
        ),
        "computed by numpy; no model of the zoo has it",
    ),
}

_DOUBLES = "in doubles, exact to the last place: half as many in a vector"
_LIBM = "through the C library, one element at a time; no model of the zoo has it"
_NUMPY = "computed by numpy; no model of the zoo has it"
_LAPACK = "LAPACK of numpy: a call takes tens of microseconds, and its OpenBLAS is not torch's MKL"

_IN_L2 = "0.14 ns an element while operands are in L2, torch 0.11; as fast beyond"
_SEGMENTS = "its result's size depends on data, so its plan has two parts, which take 50 us"
_CHECKED = "each position is checked before it is used"

#: Regular expressions of op and call, and why such a case may be slower than torch.
REASONS = {
    r"^(TAN|ASIN|ACOS|ATAN|SINH|COSH|ASINH|ACOSH|ATANH|ATAN2|POW) ": _DOUBLES,
    r"^(ERFC|ERFCX) ": _LIBM,
    r"^(ERFINV|LGAMMA|DIGAMMA|I0|HYPOT|NEXTAFTER) ": _NUMPY,
    r"^(INVERSE|SOLVE|CHOLESKY|SOLVE_TRIANGULAR|DET|SLOGDET|QR|SVD|EIGH|MATRIX_EXP) ": _LAPACK,
    r"^LU ": "numpy has no LU: a loop over columns in numpy; no model of the zoo has it",
    r"^(FMOD|REMAINDER|FLOOR_DIV) float32": (
        "exact, by quotients of doubles: half as many in a vector"
    ),
    r"^CAST ": "NaN and numbers out of range have one result on all CPUs: a comparison for each",
    r"^CUM(MAX|MIN) ": "two passes: values and places are ops of their own",
    r"^ bincount|^NONZERO bool": _SEGMENTS,
    r"^MAP clamp": "a pass over a tile in L1 for each of its two functions, where torch makes one",
    r"^(INDEX_SELECT|SCATTER)": _CHECKED,
    r"^EMBEDDING_BAG": "19 ns for each row of 256 bytes from DRAM, by torch 14",
    r"^ convolution 1x1": "15% of the time transposes the result to channels first",
    r"^CONV (7x7|3x3 in 4 groups)": "20% of the time transposes to channels last and back",
    r"^CONV depthwise 3x3$": "68% of the time transposes to channels last and back",
    r"^ one_hot": "each class is a line of its own: 34 ns for 800 bytes",
    r"^ARGSORT median": "sorts half of a line, where torch selects one element",
    r"^ adaptive max": "64% of the time transposes to channels last",
    r"^ADAPTIVE_AVG_POOL": "85% of the time transposes to channels last",
    r"^TRANSPOSE (float32|int64), contiguous": "rows of 4096 or 8192 bytes fall into one set of L1",
    r"^EXPAND rows": "writes 4 MB at the speed of L3: 63 us, torch 54 to 84 by where its pages lie",
    r"^ roll both dims": "two passes through L3: 306 us, torch 252 to 311 by where its pages lie",
    r"^ norm": "two passes over a tile: the squares are written, then read and added",
    r"^ group_norm": "reads its input three times: two moments, then the values",
    r"^ADD .* a row to each": "40 ns to begin each row",
    r"^CAT ": "each row of an operand is a copy of its own: 70 ns for 1.5 KB",
    r"^(NEG|ABS|SIGN|CEIL|FLOOR|ROUND|TRUNC|RELU|RECIPROCAL|SQUARE|RSQRT|LEAKY_RELU) ": _IN_L2,
    r"^(ADD|SUB|MUL|DIV|TRUNC_DIV|MAXIMUM|MINIMUM|EQ|LT|WHERE|NE|LE|GT|GE) ": _IN_L2,
    r"^(BITWISE|LOGICAL)_|_SHIFT ": _IN_L2,
}
