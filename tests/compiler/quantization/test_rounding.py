"""Integers and scales of matrices."""

import numpy as np
import pytest

from taper_frontend.compiler.quantization.rounding import round_matrix, rounded_to
from taper_frontend.compiler.quantization.schemes import parse_scheme
from taper_frontend.errors import ExportError
from taper_runtime.base.dtypes import cast

SCHEMES = (
    *("int8", "int8.64", "int4", "int4.zeros", "int4.128.zeros.bfloat16", "int4.channel"),
    "int4.offsets",
)


def matrix(rows=256, columns=20, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_t(5, (rows, columns)).astype(np.float32)


def decoded(found, scheme):
    if scheme.shift == "offsets":
        common = (np.repeat(cast(x, "float32"), 8, 0) for x in (found.scales, found.offsets))
        of = (x.astype(np.float32) for x in (found.factors, found.offset_factors))
        scale, offset = (np.repeat(a * b, 32, 0) for a, b in zip(common, of, strict=True))
        return found.q * scale + offset
    group = scheme.group or len(found.q)
    scale = np.repeat(cast(found.scales, "float32"), group, 0)
    zeros = 0 if found.zeros is None else np.repeat(found.zeros.astype(np.float32), group, 0)
    return (found.q - zeros) * scale


@pytest.mark.parametrize("name", SCHEMES[:-1])
def test_a_number_is_off_by_half_a_step_without_a_search(name):
    scheme, weight = parse_scheme(name), matrix()
    found = round_matrix(weight, scheme, search=False)
    assert scheme.least <= found.q.min() <= found.q.max() <= scheme.most
    step = np.repeat(cast(found.scales, "float32"), scheme.group or 256, 0)
    # scales of 16 bits are rounded, so the largest numbers may be cut by a fraction of a step
    slack = 0.5 if scheme.scales == "float32" else 0.5 + scheme.most * 2**-8
    assert (
        abs(decoded(found, scheme) - weight) <= step * (slack + bool(scheme.shift) / 2) + 1e-6
    ).all()


@pytest.mark.parametrize("name", SCHEMES)
def test_the_error_is_that_of_the_numbers(name):
    scheme, weight = parse_scheme(name), matrix()
    found = round_matrix(weight, scheme)
    error = np.linalg.norm(decoded(found, scheme).astype(np.float64) - weight)
    assert found.error == pytest.approx(error / np.linalg.norm(weight), rel=1e-4)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_search_loses_less(name):
    scheme, weight = parse_scheme(name), matrix()
    first = round_matrix(weight, scheme, search=False).error
    searched = round_matrix(weight, scheme).error
    assert searched <= first
    if scheme.bits == 4:
        assert searched < 0.98 * first


def test_a_number_is_off_by_about_half_a_step_beside_factors():
    weight = matrix()
    found = round_matrix(weight, parse_scheme("int4.offsets"), search=False)
    assert found.q.min() == 0
    assert found.q.max() == 15
    apart = abs(decoded(found, parse_scheme("int4.offsets")) - weight).reshape(8, 32, -1).max(1)
    span = np.ptp(weight.reshape(8, 32, -1), axis=1)
    # factors of 6 bits are off by half of a 63rd of the largest
    most = span.max(0) / 63 + abs(np.minimum(weight.reshape(8, 32, -1).min(1), 0)).max(0) / 126
    assert (apart <= span / 15 / 2 + most * 1.05).all()


def test_numbers_of_4_bits_with_factors_come_back():
    rng = np.random.default_rng(4)
    levels = rng.binomial(15, 0.5, (2, 8, 32, 40)).astype(np.float32)
    levels[:, :, :2] = rng.permuted(np.float32([0, 15])[:, None] + np.zeros((2, 8, 2, 40)), axis=2)
    factors = rng.integers(8, 64, (2, 2, 8, 1, 40)).astype(np.float32)
    factors[:, :, 0] = 63  # the largest, as who made them chose the common numbers
    common = np.float16(rng.uniform(1e-3, 2e-3, (2, 2, 1, 1, 40))).astype(np.float32)
    common[1] *= 8
    steps, lowest = (common * factors) * np.float32([1, -1]).reshape(2, 1, 1, 1, 1)
    weight = (levels * steps + lowest).reshape(512, 40)
    found = round_matrix(weight, parse_scheme("int4.offsets"))
    np.testing.assert_array_equal(decoded(found, parse_scheme("int4.offsets")), weight)
    assert found.error == 0


def test_offsets_lose_less_than_zero_points_in_fewer_bits():
    weight = matrix(512, 64)
    offsets, zeros = (parse_scheme(f"int4.{shift}") for shift in ("offsets", "zeros"))
    assert offsets.bytes(*weight.shape) < zeros.bytes(*weight.shape)
    assert round_matrix(weight, offsets).error < 0.95 * round_matrix(weight, zeros).error


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("search", [True, False])
def test_columns_of_equal_numbers(sign, search):
    weight = np.full((256, 3), sign * 0.75, np.float32)
    weight[:32] /= 3
    found = round_matrix(weight, parse_scheme("int4.offsets"), search=search)
    np.testing.assert_allclose(decoded(found, parse_scheme("int4.offsets")), weight, rtol=1e-3)


@pytest.mark.parametrize("name", ["int4.zeros", "int4.offsets"])
def test_chunks_are_rounded_as_the_whole(monkeypatch, name):
    scheme, weight = parse_scheme(name), matrix()
    whole = round_matrix(weight, scheme)
    monkeypatch.setattr("taper_frontend.compiler.quantization.rounding._CHUNK", 1000)
    again = round_matrix(weight, scheme)
    for field in set(whole._fields) - {"error"}:
        np.testing.assert_array_equal(getattr(whole, field), getattr(again, field))


@pytest.mark.parametrize("name", SCHEMES)
def test_zeros_stay_zeros(name):
    weight = matrix()
    weight[:, 3] = 0
    scheme = parse_scheme(name)
    found = round_matrix(weight, scheme)
    assert not decoded(found, scheme)[:, 3].any()
    least = 0 if scheme.shift == "offsets" else np.finfo(np.float32).tiny
    assert (cast(found.scales, "float32") >= least).all()


def test_numbers_that_are_almost_0_become_0():
    weight = np.full((32, 4), 1e-9, np.float32)  # a float16 scale would be 0
    found = round_matrix(weight, parse_scheme("int4"))
    assert (found.scales == 1).all()
    assert not found.q.any()


def test_what_cannot_be_rounded_is_refused_by_name():
    with pytest.raises(ExportError, match=r"weight 'a\.b': expected groups that divide its 100"):
        round_matrix(matrix(100), parse_scheme("int4"), name="a.b")
    weight = matrix(64)
    weight[5, 5] = np.nan
    with pytest.raises(ExportError, match=r"weight 'a\.b': expected finite numbers"):
        round_matrix(weight, parse_scheme("int4"), name="a.b")
    for name in ("int4", "int4.offsets"):
        with pytest.raises(ExportError, match=r"weight 'a\.b': expected scales that float16 holds"):
            round_matrix(matrix() * 1e9, parse_scheme(name), name="a.b")
    with pytest.raises(ExportError, match=r"divide its 640 rows, got groups of 256"):
        round_matrix(matrix(640), parse_scheme("int4.offsets"), name="a.b")
    round_matrix(matrix(64) * 1e9, parse_scheme("int4.bfloat16"))


def test_halves_saturate_and_keep_nan():
    x = np.array([1e6, -1e6, np.inf, -np.inf, np.nan, 1, 65519], np.float32)
    got = rounded_to(x, "float16")
    np.testing.assert_array_equal(
        got, np.float16([65504, -65504, np.inf, -np.inf, np.nan, 1, 65504])
    )
