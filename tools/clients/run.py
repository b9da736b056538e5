"""Runs one client on drawn images, words or tones and keeps what it gives.

`python -m tools.clients.run ENGINE CLIENT FOLDER OUT.npz`, where ENGINE is taper, or the client's
reference: ONNX Runtime itself, for rapidocr its own torch engine. Nothing of a client is changed:
with taper the name onnxruntime stands for taper_runtime, and models are given by path.
"""

import os
import sys
from pathlib import Path

import numpy as np


def main() -> None:
    engine, client, folder, out = sys.argv[1:]
    if engine == "taper":
        import taper_runtime

        sys.modules["onnxruntime"] = taper_runtime
    np.savez(out, **CLIENTS[client](Path(folder), engine == "taper"))
    if engine == "taper":
        named = {name: module for name, module in sys.modules.items() if "onnxruntime" in name}
        theirs = [name for name in named if name.startswith("onnxruntime.")]
        assert named["onnxruntime"] is taper_runtime
        assert not theirs, theirs


def drawing():
    """An image with a few shapes."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (150, 110), (90, 120, 200))
    draw = ImageDraw.Draw(image)
    draw.ellipse((30, 20, 90, 95), fill=(230, 60, 40))
    draw.rectangle((80, 60, 140, 90), fill=(250, 240, 30), outline=(0, 0, 0))
    return image


def run_rembg(folder: Path, taper: bool):
    """A mask, and the image cut out by it."""
    os.environ["U2NET_HOME"] = str(folder)  # where rembg takes models from
    from rembg import new_session, remove

    model = folder / ("u2net.taper" if taper else "u2net.onnx")
    session = new_session("u2net_custom", model_path=str(model))
    image = drawing()
    return {
        "mask": np.array(remove(image, session=session, only_mask=True)),
        "cut": np.array(remove(image, session=session, post_process_mask=True)),
    }


def run_fastembed(folder: Path, taper: bool):
    """Embeddings of sentences of several lengths, in batches."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    TextEmbedding.add_custom_model(
        model="own/bert",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(url="nowhere"),
        dim=64,
        model_file="bert.taper" if taper else "bert.onnx",
    )
    model = TextEmbedding("own/bert", specific_model_path=str(folder), threads=1)
    texts = ["the cat sat on the mat", "a dog", "and then it was quiet under the tree", "loud crow"]
    return {
        "passages": np.stack(list(model.embed(texts, batch_size=3))),
        "query": np.stack(list(model.query_embed("the quiet dog"))),
    }


def run_silero(folder: Path, taper: bool):
    """Probabilities of speech in tones and noise, and where it is."""
    import torch
    from silero_vad.utils_vad import OnnxWrapper, get_speech_timestamps

    seconds = np.arange(3 * 16000) / 16000
    rng = np.random.default_rng(0)
    voice = sum(np.sin(2 * np.pi * 140 * k * seconds) / k for k in range(1, 20))
    loud = (np.sin(2 * np.pi * 1.1 * seconds) > 0) * (1 + 0.5 * np.sin(2 * np.pi * 5 * seconds))
    audio = 0.2 * voice * loud + 0.01 * rng.standard_normal(len(seconds))
    wave = torch.from_numpy(audio.astype(np.float32))
    model = OnnxWrapper(str(folder / f"silero_16k.{'taper' if taper else 'onnx'}"), True)
    found = get_speech_timestamps(wave, model, threshold=0.1)
    return {
        "probabilities": model.audio_forward(wave, 16000).numpy(),
        "found": np.array([[span["start"], span["end"]] for span in found]),
    }


def run_rapidocr(folder: Path, taper: bool):
    """Boxes, directions and texts in a drawn page, then directions and texts of one line."""
    from PIL import Image, ImageDraw
    from rapidocr import EngineType, LangDet, LangRec, ModelType, OCRVersion, RapidOCR

    from tools.clients.architectures import RAPIDOCR

    params = {"Global.log_level": "critical", "Global.text_score": 0.0}
    for task, name in RAPIDOCR.items():
        section = task.capitalize()
        params[f"{section}.engine_type"] = EngineType.ONNXRUNTIME if taper else EngineType.TORCH
        params[f"{section}.model_path"] = str(folder / f"{name}.{'taper' if taper else 'pth'}")
        params[f"{section}.ocr_version"] = OCRVersion.PPOCRV4
        params[f"{section}.model_type"] = ModelType.MOBILE
    params |= {"Det.lang_type": LangDet.CH, "Rec.lang_type": LangRec.EN}
    params |= {"Det.thresh": 0.6, "Det.box_thresh": 0.1, "Det.use_dilation": False}
    params |= {"Det.limit_side_len": 96, "Cls.cls_batch_num": 1, "Rec.rec_batch_num": 1}
    if not taper:  # a plan carries its alphabet
        params["Rec.rec_keys_path"] = str(folder / "keys.txt")
    page = Image.new("RGB", (320, 160), "white")
    draw = ImageDraw.Draw(page)
    for i, text in enumerate(("hello world", "Taper 2026", "x")):
        draw.text((20 + 40 * i, 15 + 50 * i), text, fill="black", font_size=28)
    engine = RapidOCR(params=params)
    whole = engine(np.array(page))
    line = engine(np.array(page)[:60], use_det=False, use_cls=True, use_rec=True)
    boxes = engine(np.array(page), use_det=True, use_cls=False, use_rec=False)
    return {
        "boxes": np.array(boxes.boxes),
        "box_scores": np.array(boxes.scores),
        "texts": np.array(whole.txts),
        "scores": np.array(whole.scores),
        "line": np.array(line.txts),
        "line_scores": np.array(line.scores),
    }


CLIENTS = {
    "rembg": run_rembg,
    "fastembed": run_fastembed,
    "silero": run_silero,
    "rapidocr": run_rapidocr,
}

if __name__ == "__main__":
    main()
