"""Embed sentences where torch is not: with the exported plan, numpy and tokenizers.

Usage: python embed_sentences.py DIRECTORY      (as export_minilm.py wrote it)
"""

import importlib.util
import json
import sys
import time
from pathlib import Path

start = time.perf_counter()

import numpy as np  # noqa: E402  # the clock starts first

imported_numpy = time.perf_counter()

from taper_runtime.text import Encoder  # noqa: E402

imported = time.perf_counter()


def main(directory: Path) -> None:
    """Print the similarity matrix, the nearest pairs, the difference to torch and the timings."""
    assert importlib.util.find_spec("torch") is None, "torch is installed here: that proves nothing"
    print("torch cannot be imported here; numpy", np.__version__)

    opening = time.perf_counter()
    encoder = Encoder(directory / "minilm.taper")
    opened = time.perf_counter()

    sentences = json.loads((directory / "sentences.json").read_text())
    running = time.perf_counter()
    embeddings = encoder.encode(sentences)
    ran = time.perf_counter()
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        encoder.encode(sentences)
        times.append(time.perf_counter() - begin)

    similarity = embeddings @ embeddings.T
    print("\nsimilarity (percent)")
    for row in similarity:
        print("  " + " ".join(f"{100 * value:4.0f}" for value in row))
    print("\nnearest pairs")
    np.fill_diagonal(similarity, -1)
    nearest = enumerate(similarity.argmax(1).tolist())
    for i, j in sorted({(min(pair), max(pair)) for pair in nearest}):
        print(f"  {similarity[i, j]:.2f}  {sentences[i]}  ~  {sentences[j]}")

    difference = float(np.abs(embeddings - np.load(directory / "reference.npy")).max())
    print(f"\nlargest difference to torch: {difference:.1e}")
    assert difference <= 1e-5, difference
    print(
        f"import taper_runtime {1e3 * (imported - imported_numpy):.0f} ms beside numpy's "
        f"{1e3 * (imported_numpy - start):.0f}, open {1e3 * (opened - opening):.1f} ms, "
        f"first call {1e3 * (ran - running):.1f} ms, then {1e3 * min(times):.1f} ms "
        f"for {len(sentences)} sentences"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
