"""Names of schemes, and options that choose them."""

import pytest

from taper_frontend.compiler.quantization.round_activations import activation_group
from taper_frontend.compiler.quantization.schemes import (
    QuantizationConfig,
    Scheme,
    parse_scheme,
    read_quantization,
)
from taper_frontend.errors import ExportError

NAMES = {
    "int8": Scheme("int", 8, 0, "", "float32"),
    "int8.64": Scheme("int", 8, 64, "", "float16"),
    "int4": Scheme("int", 4, 32, "", "float16"),
    "int4.zeros": Scheme("int", 4, 32, "zeros", "float16"),
    "int4.channel.float32": Scheme("int", 4, 0, "", "float32"),
    "int4.128.zeros.bfloat16": Scheme("int", 4, 128, "zeros", "bfloat16"),
    "int4.offsets": Scheme("int", 4, 32, "offsets", "float16"),
    "float16": Scheme("float16", 16),
    "bfloat16": Scheme("bfloat16", 16),
    "float32": Scheme("float32", 32),
}


@pytest.mark.parametrize("name", NAMES)
def test_names(name):
    assert parse_scheme(name) == NAMES[name]
    assert NAMES[name].name == name


@pytest.mark.parametrize(
    "name",
    [
        *("int3", "int", "int4.33", "int4.bfloat16.zeros", "float16.32", "int4.0", "4", ""),
        *("int4.64.offsets", "int4.offsets.bfloat16", "int8.offsets", "int4.zeros.offsets"),
    ],
)
def test_other_names_are_refused(name):
    with pytest.raises(ExportError, match="scheme: expected float32, float16"):
        parse_scheme(name)


@pytest.mark.parametrize(
    ("name", "bits"),
    [("int4", 4.5), ("int4.zeros", 4.625), ("int4.offsets", 4.5), ("int8", 8 + 32 / 256)],
)
def test_bytes_are_those_of_the_bits(name, bits):
    rows, columns = 256, 10
    assert parse_scheme(name).bytes(rows, columns) == rows * columns * bits / 8


def test_offsets_are_for_whole_groups_of_groups():
    scheme = parse_scheme("int4.offsets")
    assert scheme.fitting(512) == scheme
    assert scheme.fitting(640).name == "int4.zeros"
    assert parse_scheme("int4").fitting(640).name == "int4"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"activations": "int8"}, "activations: expected one of"),
        ({"observer": "mean"}, "observer: expected one of"),
        ({"max_bytes": 10, "max_error": 0.1}, "expected one of them, got both"),
        ({"max_error": float("nan")}, "max_error: expected a positive number"),
        ({"max_bytes": 0}, "max_bytes: expected at least 1"),
        ({"layers": {"a": "int9"}}, "scheme: expected"),
        ({"weights": "int2.8"}, "of int2 from 16 on"),
        ({"weights": "int4", "activations": "dynamic"}, "weights: expected 'int8' beside"),
        ({"weights": "float16", "activations": "rounded"}, "weights: expected 'bfloat16' beside"),
    ],
)
def test_mistakes_are_named(given, message):
    with pytest.raises(ExportError, match=message):
        read_quantization(QuantizationConfig(**given))


def test_presets_are_options():
    assert read_quantization("int4_grouped") == QuantizationConfig("int4", activations="grouped")
    assert not read_quantization("int8_grouped").needs_module
    assert not read_quantization("bfloat16_rounded").needs_module
    assert read_quantization("int8_dynamic").needs_module


@pytest.mark.parametrize(
    ("format", "rows", "group"),
    [
        ("blocks.4.32.float16.symmetric", 2048, 128),
        ("blocks.4.32.float16.symmetric", 896, 128),
        ("blocks.4.128.float16.symmetric", 896, 128),
        ("blocks.4.32.float16.symmetric", 2880, 96),
        ("blocks.8.768.float32.zeros", 768, 128),
        ("blocks.8.328.float32.symmetric", 328, 8),
        ("blocks.8.16.float32.symmetric", 208, 16),
        ("blocks.u4.40.float16.offsets", 320, 80),
        ("blocks.8.4.float32.symmetric", 20, 0),
        ("blocks.2.64.float16.symmetric", 128, 0),
        ("blocks.q4k.32.float16.offsets", 256, 0),
        ("blocks.e4m3.128.float32.symmetric", 256, 0),
        ("panels.1", 256, 0),
    ],
)
def test_groups_of_activations_fit_the_blocks_of_a_weight(format, rows, group):
    assert activation_group(format, rows) == group


def test_what_is_no_option_is_refused():
    with pytest.raises(ExportError, match="quantize: expected the name of a scheme"):
        read_quantization(8)


def test_the_first_pattern_counts_and_the_widest_of_merged_parameters():
    options = QuantizationConfig("int4", layers={"a.*": "int8", "*.weight": "float32"})
    assert options.named(["a.weight"]).name == "int8"
    assert options.named(["b.weight"]).name == "float32"
    assert options.named(["b.bias"]) is None
    assert options.named(["a.x", "c"]).name == "int8"
