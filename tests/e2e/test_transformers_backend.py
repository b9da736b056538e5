"""Taper as an export format of transformers: export, save, load, run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel
from transformers.exporters import AutoHfExporter
from transformers.exporters.base import ExportedModel

import taper_frontend.transformers_backend
from marks import REFERENCE
from taper_frontend import ExportError

pytestmark = REFERENCE


def inputs(rows: int, count: int) -> dict[str, torch.Tensor]:
    """Return tokens, the last of which are not to be seen."""
    seen = torch.ones((rows, count), dtype=torch.int64)
    seen[:, -2:] = 0
    return {
        "input_ids": torch.arange(rows * count).reshape(rows, count) % 60,
        "attention_mask": seen,
    }


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
    return BertModel(BertConfig(vocab_size=60, num_hidden_layers=1, **sizes)).eval()


@pytest.fixture(scope="module")
def exported(model: Any) -> Any:
    exporter = AutoHfExporter.from_config({"export_format": "taper"})
    both = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    shapes = dict.fromkeys(inputs(2, 5), both)
    return exporter.export(model, inputs(2, 5), {"dynamic_shapes": shapes, "verify": False})


def test_exports_are_saved_loaded_and_run(model: Any, exported: Any, tmp_path: Path) -> None:
    exported.save_pretrained(tmp_path)
    assert (tmp_path / "model.taper").is_file()
    loaded = ExportedModel.from_pretrained(tmp_path)
    for sizes in ((2, 5), (3, 9)):
        with torch.no_grad():
            expected = model(**inputs(*sizes))
        for each in (exported, loaded):
            got = each(**inputs(*sizes))
            assert type(got) is type(expected)
            torch.testing.assert_close(
                got.last_hidden_state, expected.last_hidden_state, rtol=1e-4, atol=1e-5
            )
            torch.testing.assert_close(
                got.pooler_output, expected.pooler_output, rtol=1e-4, atol=1e-5
            )
    assert loaded.device == torch.device("cpu")
    assert loaded.dtype == torch.float32


def test_what_is_refused(exported: Any) -> None:
    with pytest.raises(ExportError, match="device: expected the CPU, got 'cuda'"):
        exported.to("cuda")
    exported.to("cpu")
    with pytest.raises(ExportError, match=r"inputs: expected 2 tensors, \['input_ids', 'attention"):
        exported(input_ids=torch.ones((2, 5), dtype=torch.int64))
    assert taper_frontend.transformers_backend.TaperConfig().export_format == "taper"
