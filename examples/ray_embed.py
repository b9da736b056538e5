"""Embed a data set on several processes, of one machine or many, with Ray Data.

Usage: python ray_embed.py MODEL.taper SENTENCES.txt OUTPUT [--workers N]

Each worker is a process with an encoder. Ray gives it batches, starts it again if it dies, and has
another one do the batch that it had. OUTPUT gets Parquet files with the columns `text` and
`embedding`. Needs `pip install 'ray[data]' 'taper-runtime[text]'`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import ray

if TYPE_CHECKING:
    import numpy as np

BATCH = 256


class Embed:
    """Embeds the batches of one worker; ``path`` is known on each machine."""

    def __init__(self, path: str) -> None:
        """Open the encoder once."""
        from taper_runtime import SessionOptions
        from taper_runtime.text import Encoder

        options = SessionOptions()
        options.intra_op_num_threads = 1  # as many as num_cpus below
        self._encoder = Encoder(path, options)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        """Add a column to a batch."""
        return {**batch, "embedding": self._encoder.encode(batch["text"].tolist())}


def embed(path: str, sentences: str, output: str, workers: int) -> None:
    """Embed each line of text files; the retries are those of a batch whose worker died."""
    rows = ray.data.read_text(sentences).repartition(4 * workers)
    found = rows.map_batches(
        Embed,
        fn_constructor_args=(path,),
        batch_size=BATCH,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=1,
        max_restarts=-1,
        max_task_retries=-1,
    )
    found.write_parquet(output)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", metavar="MODEL.taper")
    parser.add_argument("sentences", metavar="SENTENCES.txt")
    parser.add_argument("output", metavar="OUTPUT")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    embed(args.model, args.sentences, args.output, args.workers)


if __name__ == "__main__":
    main()
