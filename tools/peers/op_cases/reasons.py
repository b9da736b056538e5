"""Tell why an op is not timed, or may be slower than torch."""

#: Ops without a case, and why.
NOT_TIMED = {
    "RESHAPE": "moves nothing",
    "COPY": "is a part of others",
    "PACK": "runs when a model is exported or opened",
    "UNPACK": "runs when weights are read",
    "ARANGE": "takes no input, so an export computes it; beside an addition above",
    "RANDOM_NEXT": "is a part of RANDOM",
    "NMS": "is torchvision's",
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

#: Regular expressions of op and call, and why such a case may be slower than torch.
REASONS = {
    r"^(TAN|ASIN|ACOS|ATAN|SINH|COSH|ASINH|ACOSH|ATANH|ATAN2|POW) ": _DOUBLES,
    r"^(ERFC|ERFCX) ": _LIBM,
    r"^(ERFINV|LGAMMA|DIGAMMA|I0|HYPOT|NEXTAFTER|ARG\w+ uint8) ?": _NUMPY,
    r"^AM(AX|IN) uint8": "loads and stores each result for every four rows",
    r"^(PROD|SUM|VAR) uint8": _NUMPY,
    r"^(INVERSE|SOLVE|CHOLESKY|SOLVE_TRIANGULAR|DET|SLOGDET|QR|SVD|EIGH|MATRIX_EXP) ": _LAPACK,
    r"^LU ": "numpy has no LU: a loop over columns in numpy; no model of the zoo has it",
    r"^FMOD|^REMAINDER|^FLOOR_DIV": "exact, by quotients of doubles: half as many in a vector",
    r"^CAST .*float16|^CAST .*bfloat16": "plain loops, without the CPU's own conversion",
    r"^CAST ": "plain loops; NaN and numbers out of range have one result on all CPUs",
    r"^CAT pad,": "a copy for each padded dim, where torch makes one",
    r"^CUM(MAX|MIN) ": "two passes: values and places are ops of their own",
    r"^ bincount": "its result's size depends on data, so its plan has two segments",
    r"^MAP clamp|^MAP .*uint8": "tiles of 512 elements, which are small of bytes",
    r"^(INDEX_SELECT|SCATTER|WRITE|EMBEDDING)": "each position is checked before it is used",
}
