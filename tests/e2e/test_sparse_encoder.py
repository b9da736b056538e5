"""Sparse encoders (SPLADE) end to end: a folder, a plan, and weights of the vocabulary.

The reference is transformers with the formula in torch, one sentence at a time.
"""

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertForMaskedLM

import taper_frontend
from encoder_folders import SENTENCES, VOCABULARY, bert_folder
from taper_frontend import ExportError
from taper_frontend.encoders.sentence_folder import SentenceStage
from taper_frontend.encoders.sentence_modules import make_stage
from taper_runtime.text import Encoder


def test_embeddings_are_those_of_splade(tmp_path):
    stage = {"pooling_strategy": "max", "activation_function": "relu"}
    folder = bert_folder(
        tmp_path / "st", [("SpladePooling", stage, {})], kind=BertForMaskedLM,
        first="MLMTransformer",
    )  # fmt: skip
    plan = taper_frontend.export_encoder(folder)
    assert plan.metadata["fallbacks"] == []
    encoder = Encoder(plan)
    found = encoder.encode(SENTENCES)
    sparse = encoder.encode_sparse(SENTENCES, batch_size=2)
    for dense, each in zip(found, sparse, strict=True):
        assert (each.indices.dtype, each.weights.dtype) == (np.int64, np.float32)
        np.testing.assert_array_equal(each.indices, np.flatnonzero(dense))
        np.testing.assert_allclose(each.weights, dense[each.indices], rtol=1e-5)
    assert encoder.encode_sparse([]) == []
    one = encoder.encode_sparse(SENTENCES[0])
    np.testing.assert_array_equal(one.indices, sparse[0].indices)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    wanted = []
    for text in SENTENCES:
        ids = tokenizer(text, truncation=True, max_length=20, return_tensors="pt")
        with torch.no_grad():
            wanted.append(model(**ids).logits[0].relu().log1p().max(0).values.numpy())
    assert found.shape == (5, len(VOCABULARY))
    assert (found == 0).any()
    np.testing.assert_allclose(found, np.stack(wanted), atol=1e-5)


@pytest.mark.parametrize("strategy", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_formulas_of_the_pooling(strategy, activation, tmp_path):
    settings = {"pooling_strategy": strategy, "activation_function": activation}
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    found = make_stage(SentenceStage("SpladePooling", tmp_path, settings))(logits, mask, mask)
    for row, length in enumerate([3, 2]):
        x = np.log1p(np.maximum(logits[row, :length].double().numpy(), 0))
        x = np.log1p(x) if activation == "log1p_relu" else x
        wanted = x.max(0) if strategy == "max" else x.sum(0)
        np.testing.assert_allclose(found[row], wanted, atol=1e-6)


@pytest.mark.parametrize("key", ["pooling_strategy", "activation_function"])
def test_unknown_settings_are_named(key, tmp_path):
    with pytest.raises(ExportError, match=f"{key}: expected one of .*, got 'mean'"):
        make_stage(SentenceStage("SpladePooling", tmp_path, {key: "mean"}))
