"""Lower torch.linalg.

torch checks the result ``info`` afterwards in ``torch.linalg.inv``, and returns it from ``inv_ex``.
Here the op checks it, because a plan cannot raise a model's own errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.lowering.complex_parts import conjugate
from taper_frontend.lowering.handlers import lowers
from taper_frontend.lowering.needed_calls import LINALG_CHECK
from taper_frontend.lowering.representation import Pairs, resolution
from taper_runtime.base.sizes import smallest

if TYPE_CHECKING:
    from taper_frontend.lowering.aten_program import Node
    from taper_frontend.lowering.context import Lowering, Operand


@lowers("aten.linalg_inv_ex.default")
def inv_ex(ctx: Lowering, a: str, check_errors: bool = False) -> tuple[str, str | None]:
    """Invert; ``info`` is the index at which the factorization stops."""
    inverse = ctx.emit("INVERSE", [a], check=check_errors or _is_checked(ctx, 1))
    return inverse, _lu_info(ctx, a) if _is_read(ctx, 1) else None


@lowers("aten._linalg_solve_ex.default")
def solve_ex(
    ctx: Lowering, a: str, b: str, *, left: bool = True, check_errors: bool = False
) -> tuple[str, str | None, str | None, str | None]:
    """Solve ``a @ x = b``, or ``x @ a = b``; b may also be a batch of vectors."""
    is_vector = ctx.rank(b) == 1 or ctx.shape(b) == ctx.shape(a)[:-1]
    if is_vector:
        b = ctx.reshape(b, (*ctx.shape(b), 1))
    check = check_errors or _is_checked(ctx, 3)
    if left:
        x = ctx.emit("SOLVE", [a, b], check=check)
    else:
        x = _transpose(
            ctx, ctx.emit("SOLVE", [_transpose(ctx, a), _transpose(ctx, b)], check=check)
        )
    factors, pivots, info = None, None, None
    if any(_is_read(ctx, index) for index in (1, 2, 3)):
        factors, pivots, _, info = _lu(ctx, a)
    return ctx.reshape(x, ctx.output.shape), factors, pivots, info


@lowers("aten.linalg_cholesky_ex.default")
def cholesky_ex(
    ctx: Lowering, a: str, *, upper: bool = False, check_errors: bool = False
) -> tuple[str, str | None]:
    """Return the Cholesky factor; the upper triangle is the transpose of the lower one."""
    a = _transpose(ctx, a) if upper else a
    factor = ctx.emit("CHOLESKY", [a], check=check_errors or _is_checked(ctx, 1))
    info = ctx.emit("CHOLESKY_INFO", [a]) if _is_read(ctx, 1) else None
    return _transpose(ctx, factor) if upper else factor, info


@lowers("aten.cholesky.default")
def cholesky(ctx: Lowering, a: str, upper: bool = False) -> str:
    """Return the Cholesky factor, without the info that ``cholesky_ex`` has."""
    a = _transpose(ctx, a) if upper else a
    factor = ctx.emit("CHOLESKY", [a])
    return _transpose(ctx, factor) if upper else factor


@lowers("aten.linalg_solve_triangular.default")
def solve_triangular(
    ctx: Lowering, a: str, b: str, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> str:
    """Solve ``a @ x = b``, or ``x @ a = b``, for a triangular matrix."""
    if left:
        return ctx.emit("SOLVE_TRIANGULAR", [a, b], upper=upper, unit=unitriangular)
    a, b = _transpose(ctx, a), _transpose(ctx, b)
    return _transpose(
        ctx, ctx.emit("SOLVE_TRIANGULAR", [a, b], upper=not upper, unit=unitriangular)
    )


@lowers("aten.triangular_solve.default")
def triangular_solve(
    ctx: Lowering,
    b: str,
    a: str,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[str, str]:
    """Solve with a triangular matrix; also return the matrix, broadcast to the solutions."""
    matrix = _transpose(ctx, a) if transpose else a
    x = ctx.emit("SOLVE_TRIANGULAR", [matrix, b], upper=upper != transpose, unit=unitriangular)
    return x, ctx.expand(a, (*ctx.shape(x)[:-2], *ctx.shape(a)[-2:]))


@lowers("aten.cholesky_solve.default")
def cholesky_solve(ctx: Lowering, b: str, factor: str, upper: bool = False) -> str:
    """Solve with a Cholesky factor: forward, then backward substitution."""
    lower = _adjoint(ctx, factor) if upper else factor
    x = ctx.emit("SOLVE_TRIANGULAR", [lower, b])
    return ctx.emit("SOLVE_TRIANGULAR", [_adjoint(ctx, lower), x], upper=True)


@lowers("aten.cholesky_inverse.default")
def cholesky_inverse(ctx: Lowering, factor: str, upper: bool = False) -> str:
    """Invert a matrix from its Cholesky factor."""
    size = ctx.shape(factor)[-1]
    identity = _identity(ctx, size, ctx.dtype(factor))
    return cholesky_solve(ctx, identity, factor, upper)


@lowers("aten._linalg_det.default")
def det(ctx: Lowering, a: str) -> tuple[str, str | None, str | None]:
    """Compute determinants."""
    factors, pivots = _read_factors(ctx, a, 1)
    return ctx.emit("DET", [a]), factors, pivots


@lowers("aten._linalg_slogdet.default")
def slogdet(ctx: Lowering, a: str) -> tuple[str, str, str | None, str | None]:
    """Compute signs and logarithms of determinants."""
    sign, logarithm = ctx.emit_multi("SLOGDET", [a])
    factors, pivots = _read_factors(ctx, a, 2)
    return sign, logarithm, factors, pivots


@lowers("aten.linalg_qr.default")
def qr(ctx: Lowering, a: str, mode: str = "reduced") -> tuple[str, str]:
    """Factorize into an orthogonal matrix and a triangle."""
    results = ctx.emit_multi("QR", [a], mode=mode)
    if mode == "r":
        return ctx.full((0,), 0, ctx.dtype(a)), results[0]
    return results[0], results[1]


@lowers("aten._linalg_svd.default")
def svd(
    ctx: Lowering,
    a: str,
    full_matrices: bool = False,
    compute_uv: bool = True,
    *,
    driver: str | None = None,
) -> tuple[str | None, str, str | None]:
    """Decompose into singular values and vectors."""
    vectors = compute_uv and (ctx.reads(0) or ctx.reads(2))
    results = ctx.emit_multi("SVD", [a], vectors=vectors, full=full_matrices)
    return (results[0], results[1], results[2]) if vectors else (None, results[0], None)


@lowers("aten._linalg_eigh.default")
def eigh(ctx: Lowering, a: str, UPLO: str = "L", compute_v: bool = True) -> tuple[str, str | None]:
    """Decompose symmetric matrices into eigenvalues and vectors."""
    vectors = compute_v and ctx.reads(1)
    values, *rest = ctx.emit_multi("EIGH", [a], vectors=vectors, upper=UPLO.upper() == "U")
    return values, rest[0] if rest else None


@lowers("aten.linalg_eig.default")
def eig(ctx: Lowering, a: str) -> tuple[str, str]:
    """Decompose matrices into eigenvalues and vectors, both complex."""
    values, vectors = ctx.emit_multi("EIG", [a])
    return Pairs(values), Pairs(vectors)


@lowers("aten.linalg_eigvals.default", "aten._linalg_eigvals.default")
def eigvals(ctx: Lowering, a: str) -> str:
    """Compute eigenvalues."""
    return Pairs(ctx.emit_multi("EIG", [a])[0])


@lowers("aten.linalg_matrix_exp.default")
def matrix_exp(ctx: Lowering, a: str) -> str:
    """Compute exponentials."""
    return ctx.emit("MATRIX_EXP", [a])


@lowers("aten.linalg_pinv.atol_rtol_tensor")
def pinv(
    ctx: Lowering,
    a: str,
    *,
    atol: str | None = None,
    rtol: str | None = None,
    hermitian: bool = False,
) -> str:
    """Invert the singular values (hermitian: eigenvalues) above a tolerance."""
    dtype, shape, _ = ctx.type(a)
    if 0 in shape[-2:]:
        return ctx.full(ctx.output.shape, 0, dtype)
    if hermitian:
        values, u = ctx.emit_multi("EIGH", [a])
        v, s = u, ctx.emit("ABS", [values])
    else:
        u, s, vh = ctx.emit_multi("SVD", [a])
        v, values = _adjoint(ctx, vh), s
    axis, real = ctx.rank(s) - 1, ctx.dtype(s)
    if rtol is None:
        rate = resolution(real) * max(shape[-2:])
        relative: Operand = rate if atol is None else 0.0
    else:
        relative = ctx.reshape(rtol, (*ctx.shape(rtol), 1))
    limit = ctx.emit("AMAX", [s], axes=[axis], keepdim=True)
    limit = ctx.apply("MUL", limit, relative, dtype=real)
    if atol is not None:
        limit = ctx.apply("MAXIMUM", limit, ctx.reshape(atol, (*ctx.shape(atol), 1)), dtype=real)
    large = ctx.apply("GT", s, limit, dtype=real)
    inverse = ctx.apply("WHERE", large, ctx.emit("RECIPROCAL", [values]), 0.0, dtype=real)
    inverse = ctx.reshape(inverse, (*ctx.shape(s)[:-1], 1, ctx.shape(s)[-1]))
    return ctx.emit("MATMUL", [ctx.apply("MUL", v, inverse, dtype=dtype), _adjoint(ctx, u)])


# -- LU -------------------------------------------------------------------------------------------


@lowers("aten.linalg_lu_factor_ex.default")
def lu_factor_ex(
    ctx: Lowering, a: str, *, pivot: bool = True, check_errors: bool = False
) -> tuple[str, str, str]:
    """Return the LU factors and pivots; singular matrices are no error, as in ``lu_factor``."""
    if not pivot:
        ctx.unsupported("expected pivot=True, got False")
    factors, pivots, _, info = _lu(ctx, a)
    return factors, pivots, info


@lowers("aten.linalg_lu.default")
def lu(ctx: Lowering, a: str, *, pivot: bool = True) -> tuple[str, str, str]:
    """Factorize into a permutation and two triangles."""
    if not pivot:
        ctx.unsupported("expected pivot=True, got False")
    factors, _, order, _ = _lu(ctx, a)
    dtype, (*_, rows, columns), _ = ctx.type(a)
    inner = smallest(rows, columns)
    axis = ctx.rank(a) - 1
    row, column = _positions(ctx, rows, columns)
    zero = 0.0
    lower = ctx.apply("WHERE", ctx.emit("GT", [row, column]), factors, zero, dtype=dtype)
    lower = ctx.apply("ADD", lower, ctx.cast(ctx.emit("EQ", [row, column]), dtype), dtype=dtype)
    upper = ctx.apply("WHERE", ctx.emit("LE", [row, column]), factors, zero, dtype=dtype)
    row, _ = _positions(ctx, rows, rows)
    order = ctx.reshape(order, (*ctx.shape(order)[:-1], 1, rows))
    permutation = ctx.cast(ctx.apply("EQ", row, order, dtype="int64"), dtype)
    return permutation, ctx.slice(lower, axis, 0, inner), ctx.slice(upper, axis - 1, 0, inner)


def _lu(ctx: Lowering, a: str) -> tuple[str, str, str, str]:
    """Return factors, pivots in torch's form, the order of rows, and info."""
    factors, pivots, order, info = ctx.emit_multi("LU", [a])
    return factors, pivots, order, info


def _lu_info(ctx: Lowering, a: str) -> str:
    return _lu(ctx, a)[3]


def _read_factors(ctx: Lowering, a: str, index: int) -> tuple[str | None, str | None]:
    """Return the LU factors and pivots if result ``index`` or the next is read, else two None."""
    if not (ctx.reads(index) or ctx.reads(index + 1)):
        return None, None
    factors, pivots, *_ = _lu(ctx, a)
    return factors, pivots


# -- helpers --------------------------------------------------------------------------------------


def _transpose(ctx: Lowering, a: str) -> str:
    rank = ctx.rank(a)
    return ctx.permute(a, (*range(rank - 2), rank - 1, rank - 2))


def _adjoint(ctx: Lowering, a: str) -> str:
    return conjugate(ctx, _transpose(ctx, a))


def _positions(ctx: Lowering, rows: int, columns: int) -> tuple[str, str]:
    """Return the row numbers as a column, and the column numbers as a row."""
    row = ctx.reshape(ctx.emit("ARANGE", [], start=0, stop=rows), (rows, 1))
    return row, ctx.emit("ARANGE", [], start=0, stop=columns)


def _identity(ctx: Lowering, size: int, dtype: str) -> str:
    return ctx.cast(ctx.emit("EQ", list(_positions(ctx, size, size))), dtype)


def _is_checked(ctx: Lowering, index: int) -> bool:
    """Return whether the module raises errors depending on result ``index``."""
    return any(_is_check(user) for user in _users(ctx, index))


def _is_read(ctx: Lowering, index: int) -> bool:
    """Return whether anything except such a check uses result ``index``."""
    return any(not _is_check(user) for user in _users(ctx, index))


def _users(ctx: Lowering, index: int) -> list[Node]:
    return [user for pick in ctx.node.users if pick.args[1] == index for user in pick.users]


def _is_check(node: Node) -> bool:
    return LINALG_CHECK in (node.target, *node.args[1:2])
