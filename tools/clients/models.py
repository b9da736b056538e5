"""Write the clients' models into a folder: as plans, and as what the reference runs.

`python -m tools.clients.models FOLDER` needs torch, both packages of Taper, onnx and onnxscript.
"""

import json
import sys
import warnings
from importlib.resources import files
from pathlib import Path

import onnx
import torch
import torch.nn.functional as F
from onnx.numpy_helper import to_array
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from torch.export import Dim

import taper_frontend
from tools.clients.architectures import RAPIDOCR

#: Lines of text that rapidocr's recognizer can tell apart.
CHARACTERS = [*"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"]
CHARACTERS += [chr(code) for code in range(0xC0, 0xC0 + 95 - len(CHARACTERS))]
WORDS = ["the", "a", "cat", "dog", "sat", "on", "under", "mat", "tree", "and", "then", "it", "was"]
WORDS += ["quiet", "loud"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def randomize(module: nn.Module, seed: int) -> nn.Module:
    """Seeded weights, and statistics that make a batch norm more than a copy."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in module.state_dict().items():
        if name.endswith("running_var"):
            tensor.uniform_(0.5, 1.5, generator=generator)
        elif name.endswith("running_mean"):
            tensor.normal_(0, 0.1, generator=generator)
        elif tensor.ndim > 1:
            tensor.normal_(0, (2 / tensor[0].numel()) ** 0.5, generator=generator)
    return module.eval()


def block(inputs: int, outputs: int, dilation: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, 3, padding=dilation, dilation=dilation)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())


class Unet(nn.Module):
    """A U of blocks within a U, as rembg's U2-Net has it, but smaller: image to masks."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down = block(3, 16), nn.ModuleList([block(16, 16), block(16, 16)])
        self.bottom = block(16, 16, dilation=2)
        self.up = nn.ModuleList([block(32, 16), block(32, 16)])
        self.sides = nn.ModuleList([nn.Conv2d(16, 1, 3, padding=1) for _ in range(3)])
        self.join = nn.Conv2d(3, 1, 1)

    def forward(self, image):
        entered = self.enter(image)
        x, kept, sides = entered, [], []
        for layer in self.down:
            x = layer(x)
            kept.append(x)
            x = F.max_pool2d(x, 2, 2, ceil_mode=True)
        x = self.bottom(x)
        for layer, beside in zip(self.up, reversed(kept), strict=True):
            x = F.interpolate(x, size=beside.shape[2:], mode="bilinear")
            x = layer(torch.cat([x, beside], 1))
            sides.append(F.interpolate(x, size=image.shape[2:], mode="bilinear"))
        masks = [side(y) for side, y in zip(self.sides, [*sides, x + entered], strict=True)]
        return [torch.sigmoid(mask) for mask in [self.join(torch.cat(masks, 1)), *masks]]


class Vad(nn.Module):
    """Silero's detector for 16 kHz; its weights are those of the ONNX file in its package."""

    def __init__(self) -> None:
        super().__init__()
        self.basis = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        sizes = [(129, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1)]
        self.encoder = nn.ModuleList([nn.Conv1d(i, o, 3, s, padding=1) for i, o, s in sizes])
        self.rnn = nn.LSTMCell(128, 128)
        self.decoder = nn.Conv1d(128, 1, 1)

    def forward(self, input, state, sr):
        waves = self.basis(F.pad(input, (0, 64), mode="reflect").unsqueeze(1))
        real, imaginary = waves.chunk(2, 1)
        x = (real**2 + imaginary**2).sqrt()
        for layer in self.encoder:
            x = layer(x).relu()
        h, c = self.rnn(x.squeeze(-1), (state[0], state[1]))
        speech = self.decoder(h.unsqueeze(-1).relu()).sigmoid()
        return speech.mean(2), torch.stack([h, c])

    @staticmethod
    def load(path: Path) -> "Vad":
        """The module with the weights of silero's own ONNX file."""
        stored = {item.name: item for item in onnx.load(path).graph.initializer}

        def weight(name: str) -> torch.Tensor:
            return torch.from_numpy(to_array(stored[name]).copy())

        names = {"basis.weight": "model.stft.forward_basis_buffer"}
        for kind in ("weight", "bias"):
            for i in range(4):
                names[f"encoder.{i}.{kind}"] = f"model.encoder.{i}.reparam_conv.{kind}"
            for which in ("ih", "hh"):
                names[f"rnn.{kind}_{which}"] = f"model.decoder.rnn.{kind}_{which}"
            names[f"decoder.{kind}"] = f"model.decoder.decoder.2.{kind}"
        module = Vad()
        module.load_state_dict({mine: weight(theirs) for mine, theirs in names.items()})
        return module.eval()


def make_rembg(folder: Path) -> None:
    module = randomize(Unet(), 1)
    image = torch.rand(1, 3, 320, 320)
    taper_frontend.export(module, (image,)).save(folder / "u2net.taper")
    torch.onnx.export(module, (image,), folder / "u2net.onnx", dynamo=True, external_data=False)


def make_silero(folder: Path) -> None:
    path = Path(str(files("silero_vad.data") / "silero_vad_16k_op15.onnx"))
    (folder / "silero_16k.onnx").write_bytes(path.read_bytes())
    args = (torch.zeros(1, 576), torch.zeros(2, 1, 128), torch.tensor(16000))
    taper_frontend.export(Vad.load(path), args).save(folder / "silero_16k.taper")


def make_fastembed(folder: Path) -> None:
    from transformers import BertConfig, BertModel

    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=ends
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    texts = {"config": {"pad_token_id": 0}}
    texts["tokenizer_config"] = {"model_max_length": 32, "pad_token": "[PAD]"}
    texts["special_tokens_map"] = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    for name, value in texts.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=32,
    )
    torch.manual_seed(2)
    module = BertModel(config, add_pooling_layer=False).eval()
    ids = torch.randint(4, len(vocabulary), (2, 7))
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": torch.zeros_like(ids),
    }
    dims = {0: Dim("batch", max=64), 1: Dim("tokens", max=32)}
    shapes = dict.fromkeys(inputs, dims)
    plan = taper_frontend.export(module, kwargs=inputs, dynamic_shapes=shapes)
    plan.save(folder / "bert.taper")
    torch.onnx.export(
        module,
        kwargs=inputs,
        f=folder / "bert.onnx",
        dynamic_shapes=shapes,
        dynamo=True,
        external_data=False,
    )


@torch.no_grad()
def temper(task: str, module: nn.Module) -> None:
    """Make random weights' answers less than certain, and text less than everything."""
    layers = {"det": ("head.binarize.conv3", 0.7), "rec": ("head.ctc_head.fc", 0.5)}
    if task not in layers:
        return
    name, threshold = layers[task]
    layer = module.get_submodule(name)
    logits = []
    hook = layer.register_forward_hook(lambda _, inputs, output: logits.append(output))
    page = torch.ones(1, 3, 48 if task == "rec" else 160, 320)  # white, with a dark line
    page[:, :, 10:36, 20:200] = torch.rand(26, 180, generator=torch.Generator().manual_seed(9))
    module(page)
    hook.remove()
    scale = 3 / logits[0].std()
    layer.weight *= scale
    layer.bias -= logits[0].quantile(threshold)
    layer.bias *= scale


def make_rapidocr(folder: Path) -> None:
    from omegaconf import OmegaConf
    from rapidocr.inference_engine.pytorch.networks import main
    from rapidocr.inference_engine.pytorch.networks.architectures.base_model import BaseModel

    known = OmegaConf.load(main.ModelLoader.DEFAULT_CFG_PATH)
    (folder / "keys.txt").write_text("\n".join(CHARACTERS))
    inputs = {
        "det": (
            torch.rand(1, 3, 96, 128),
            {2: 32 * Dim("rows", max=60), 3: 32 * Dim("columns", max=60)},
        ),
        "cls": (torch.rand(1, 3, 48, 192), None),
        "rec": (torch.rand(1, 3, 48, 320), {3: 8 * Dim("width", min=4, max=200)}),
    }
    for seed, (task, name) in enumerate(RAPIDOCR.items()):
        module = randomize(BaseModel(known[name]), seed)
        temper(task, module)
        torch.save(module.state_dict(), folder / f"{name}.pth")
        image, dims = inputs[task]
        plan = taper_frontend.export(
            module,
            (image,),
            dynamic_shapes=dims and (dims,),
            metadata={"character": "\n".join(CHARACTERS)} if task == "rec" else None,
        )
        plan.save(folder / f"{name}.taper")


MAKERS = {
    "rembg": make_rembg,
    "silero": make_silero,
    "fastembed": make_fastembed,
    "rapidocr": make_rapidocr,
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    client, folder = sys.argv[1:]
    MAKERS[client](Path(folder))
