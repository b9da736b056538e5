"""Time an engine that embeds sentences here: `python -m tools.peers.sentence_engines NAME FOLDER`.

The folder has ``minilm.taper``, the files of sentence-transformers, and ``onnx/model.onnx``. Prints
a JSON list: CPU seconds for all sentences, and a part of their embeddings. One thread, batches of
32.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Embed = Callable[[list[str]], np.ndarray]

#: Sentences, and the least and most tokens of one.
SENTENCES, LEAST, MOST, BATCH = 128, 8, 256, 32


def sentences(folder: Path) -> list[str]:
    """Return sentences of seeded words, each of them a token, of evenly drawn lengths."""
    known = (folder / "vocab.txt").read_text(encoding="utf-8").split()
    words = [word for word in known if word.isascii() and word.isalpha() and len(word) > 3]
    rng = np.random.default_rng(0)
    lengths = rng.integers(LEAST - 2, MOST - 1, SENTENCES)  # two tokens stand around them
    return [" ".join(rng.choice(words, length)) for length in lengths]


def taper(folder: Path) -> Embed:
    """Taper's encoder."""
    import taper_runtime
    from taper_runtime.text import Encoder

    options = taper_runtime.SessionOptions()
    options.intra_op_num_threads = 1
    encoder = Encoder(folder / "minilm.taper", options)
    return lambda texts: encoder.encode(texts, batch_size=BATCH)


def sentence_transformers(folder: Path) -> Embed:
    """sentence-transformers with torch."""
    return _over_torch(folder)[1]


def _over_torch(folder: Path) -> tuple[Any, Embed]:
    import sentence_transformers
    import torch

    torch.set_num_threads(1)
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    return model, lambda texts: model.encode(texts, batch_size=BATCH)


def sentence_transformers_onnx(folder: Path) -> Embed:
    """sentence-transformers whose transformer is ONNX Runtime.

    That is what its onnx backend does, which needs optimum, which needs an older transformers.
    """
    import onnxruntime
    import torch

    model, embed = _over_torch(folder)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx", options)
    names = [each.name for each in session.get_inputs()]

    def forward(**given: Any) -> dict[str, torch.Tensor]:
        feed = {name: given[name].numpy() for name in names}
        return {"last_hidden_state": torch.from_numpy(session.run(None, feed)[0])}

    model[0].model.forward = forward
    return embed


def fastembed(folder: Path) -> Embed:
    """Fastembed with a model of its user's, in its own batches' order."""
    import fastembed
    from fastembed.common.model_description import ModelSource, PoolingType

    fastembed.TextEmbedding.add_custom_model(
        model="minilm",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(url="file:///nowhere"),
        dim=384,
        model_file="onnx/model.onnx",
    )
    model = fastembed.TextEmbedding("minilm", specific_model_path=str(folder), threads=1)
    return lambda texts: np.array([*model.embed(texts, batch_size=BATCH)])


ENGINES: dict[str, Callable[[Path], Embed]] = {
    "Taper": taper,
    "sentence-transformers, torch": sentence_transformers,
    "sentence-transformers over ONNX Runtime": sentence_transformers_onnx,
    "fastembed": fastembed,
}


def main(arguments: Sequence[str]) -> None:
    """Print the time of an engine."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    name, folder = arguments[0], Path(arguments[1])
    embed, texts = ENGINES[name](folder), sentences(folder)
    embed(texts[:2])
    begin = time.process_time()
    found = embed(texts)
    taken = time.process_time() - begin
    print(f"\n{json.dumps([taken, found[:4].tolist()])}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
