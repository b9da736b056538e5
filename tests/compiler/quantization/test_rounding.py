"""Integers and scales of matrices."""

import numpy as np
import pytest

from taper_frontend.compiler.quantization.rounding import round_matrix, rounded_to
from taper_frontend.compiler.quantization.schemes import parse_scheme
from taper_frontend.errors import ExportError
from taper_runtime.base.dtypes import cast

SCHEMES = ("int8", "int8.64", "int4", "int4.zeros", "int4.128.zeros.bfloat16", "int4.channel")


def matrix(rows=256, columns=20, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_t(5, (rows, columns)).astype(np.float32)


def decoded(found, scheme):
    group = scheme.group or len(found.q)
    scale = np.repeat(cast(found.scales, "float32"), group, 0)
    zeros = 0 if found.zeros is None else np.repeat(found.zeros.astype(np.float32), group, 0)
    return (found.q - zeros) * scale


@pytest.mark.parametrize("name", SCHEMES)
def test_a_number_is_off_by_half_a_step_without_a_search(name):
    scheme, weight = parse_scheme(name), matrix()
    found = round_matrix(weight, scheme, search=False)
    assert scheme.least <= found.q.min() <= found.q.max() <= scheme.most
    step = np.repeat(cast(found.scales, "float32"), scheme.group or 256, 0)
    # scales of 16 bits are rounded, so the largest numbers may be cut by a fraction of a step
    slack = 0.5 if scheme.scales == "float32" else 0.5 + scheme.most * 2**-8
    assert (abs(decoded(found, scheme) - weight) <= step * (slack + scheme.zeros / 2) + 1e-6).all()


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


def test_chunks_are_rounded_as_the_whole(monkeypatch):
    scheme, weight = parse_scheme("int4.zeros"), matrix()
    whole = round_matrix(weight, scheme)
    monkeypatch.setattr("taper_frontend.compiler.quantization.rounding._CHUNK", 1000)
    for a, b in zip(whole[:3], round_matrix(weight, scheme)[:3], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", SCHEMES)
def test_zeros_stay_zeros(name):
    weight = matrix()
    weight[:, 3] = 0
    scheme = parse_scheme(name)
    found = round_matrix(weight, scheme)
    assert not decoded(found, scheme)[:, 3].any()
    assert (cast(found.scales, "float32") > 0).all()


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
    with pytest.raises(ExportError, match=r"weight 'a\.b': expected scales that float16 holds"):
        round_matrix(matrix(64) * 1e9, parse_scheme("int4"), name="a.b")
    round_matrix(matrix(64) * 1e9, parse_scheme("int4.bfloat16"))


def test_halves_saturate_and_keep_nan():
    x = np.array([1e6, -1e6, np.inf, -np.inf, np.nan, 1, 65519], np.float32)
    got = rounded_to(x, "float16")
    np.testing.assert_array_equal(
        got, np.float16([65504, -65504, np.inf, -np.inf, np.nan, 1, 65504])
    )
