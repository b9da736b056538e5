"""Serve a GGUF file with llama.cpp: `python -m tools.peers.llama_server PATH THREADS TEXTS TOKENS`.

The package xllamacpp has llama.cpp's server, which runs in this process. It writes so many texts at
once, each of up to so many tokens. A line on standard error has its port.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> None:
    """Serve until the process is terminated."""
    import xllamacpp

    path, threads, texts, tokens = arguments
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_parallel = int(texts)
    params.n_ctx = int(texts) * int(tokens)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    params.warmup = params.cache_prompt = params.fit_params = False
    params.cache_ram_mib = 0
    params.verbosity = -1
    params.port = 0
    server = xllamacpp.Server(params)
    print(f"port {urlsplit(server.listening_address).port}", file=sys.stderr, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1:])
