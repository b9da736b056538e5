"""Measure the time to the first token and tokens per second of clients; `--quick` only prints.

`taper serve` and the server of llama.cpp each run in a process of their own, with one of the GGUF
files of :mod:`tools.peers.texts`, and are measured in turns. Clients in threads each send one
streamed completion after the other; all prompts have one length, and all texts. The first token
counts from the moment a client sends its request; the rate of a text is that of the tokens behind
its first. `--address URL --model NAME` measures another server of OpenAI's protocol instead, and
only prints. Writes docs/results/text-server.md.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from tools.peers import texts
from tools.peers.bytecode import environment
from tools.peers.page import PAGE, command_line, describe_setting, write_section

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CLIENTS = (1, 2, 8)
PROMPT, TEXT = 128, 64  # tokens
REQUESTS = 4  # of each client, after one that is not counted

#: Ids of the tokens of prompts, which are words.
WORDS = range(300, 8000)

#: The most texts at once, and the most tokens of each, that a server makes room for.
TEXTS, CONTEXT = max(CLIENTS), PROMPT + TEXT


class Answered(NamedTuple):
    """One request: seconds to the first token, to the last one, and its tokens."""

    first: float
    last: float
    tokens: int

    @property
    def rate(self) -> float:
        """Tokens per second behind the first one."""
        return (self.tokens - 1) / (self.last - self.first)


@contextmanager
def served(module: str, *arguments: str | Path) -> Iterator[str]:
    """Run a server in a process; give its address."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"port (\d+)", line):
                break
        else:
            raise RuntimeError(f"{module}: {''.join(lines)}")
        # what it tells later is read, so that it never waits for a reader
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield f"http://127.0.0.1:{found[1]}"
    finally:
        process.terminate()
        process.wait()


def ask(address: str, model: str, prompt: list[int]) -> Answered:
    """Send one request, and time the events of its stream."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=600)
    body = {
        "model": model, "prompt": prompt, "max_tokens": TEXT, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    began = time.perf_counter()
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    first = last = tokens = 0.0
    for line in connection.getresponse():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(event["error"])
        if event["choices"] and event["choices"][0]["text"]:
            last = time.perf_counter() - began
            first = first or last
        tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    connection.close()
    return Answered(first, last, int(tokens))


def load(address: str, model: str, clients: int, requests: int) -> tuple[list[Answered], float]:
    """Have clients ask at once; return what was answered, and all tokens per second."""
    found: list[list[Answered]] = [[] for _ in range(clients)]

    def client(place: int) -> None:
        rng = np.random.default_rng(place)
        for _ in range(requests):
            prompt = rng.integers(WORDS.start, WORDS.stop, PROMPT).tolist()
            found[place].append(ask(address, model, prompt))

    threads = [threading.Thread(target=client, args=(place,)) for place in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    answers = [each for row in found for each in row]
    return answers, sum(each.tokens for each in answers) / seconds


def table(addresses: dict[str, str], model: str, requests: int) -> str:
    """Return the figures of each number of clients, of servers by their names."""
    columns = ("server", "clients", "first token, p50 s", "p95 s", "tokens/s of a text, p50", "p5")
    lines = []
    for address in addresses.values():
        load(address, model, 1, 1)
    for clients in CLIENTS:
        for name, address in addresses.items():
            answers, total = load(address, model, clients, requests)
            first = np.percentile([each.first for each in answers], [50, 95])
            rate = np.percentile([each.rate for each in answers], [50, 5])
            lines.append(
                f"| {name} | {clients} | {first[0]:.3f} | {first[1]:.3f} | {rate[0]:.1f} "
                f"| {rate[1]:.1f} | {total:.1f} |"
            )
    return texts.table("", (*columns, "all tokens/s"), lines)


def describe(size: str, name: str, threads: int, requests: int) -> str:
    """Return the table of a model with weights of one kind."""
    weights = texts.WEIGHTS[name]
    source = texts.gguf(size, weights.kind)
    plan = texts.export(source, source.with_suffix(".taper"))
    if weights.grouped:
        plan = texts.quantize(plan, weights.grouped)
    ours = ("taper_runtime.cli", "serve", f"model={plan}", "--port", "0", "--threads", str(threads))
    theirs = ("tools.peers.llama_server", source, str(threads), str(TEXTS), str(CONTEXT))
    with served(*ours) as taper, served(*theirs) as llama:
        figures = table({"taper serve": taper, "llama.cpp": llama}, "model", requests)
    return (
        f"{size} parameters, {name} ({weights.kind}), {threads} thread(s), prompts of {PROMPT} "
        f"tokens and texts of {TEXT}:\n{figures}"
    )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", choices=texts.SIZES, default=["100M"])
    parser.add_argument("--weights", nargs="+", choices=texts.WEIGHTS, default=["int8"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--address", help="measure the server there instead")
    parser.add_argument("--model", default="model", help="its name for the model")
    parser.add_argument("--quick", action="store_true", help="a glance: print, write nothing")
    options = parser.parse_args()
    requests = 2 if options.quick else REQUESTS
    if options.address:
        print(table({options.address: options.address}, options.model, requests))
        return
    parts = [describe_setting(command_line("text_server"), "xllamacpp", "uvicorn")]
    print(parts[0], flush=True)
    for size in options.sizes:
        for name in options.weights:
            parts.append(describe(size, name, options.threads, requests))
            print(f"\n{parts[-1]}", flush=True)
    if not options.quick:
        page = PAGE.with_name("text-server.md")
        write_section("text_server", "Clients of one server", "\n\n".join(parts), page)


if __name__ == "__main__":
    main()
