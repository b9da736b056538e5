"""Run the examples in docs/adding-an-op.md as they stand."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import taper_frontend
from taper_frontend.lowering import HANDLERS
from taper_runtime.ops import REGISTRY

PAGE = Path(__file__).parents[2] / "docs" / "adding-an-op.md"


@pytest.fixture
def registries():
    """Forget what the example registers."""
    kept = [(registry, dict(registry)) for registry in (HANDLERS, REGISTRY)]
    yield
    for registry, entries in kept:
        registry.clear()
        registry.update(entries)


@pytest.mark.usefixtures("registries")
def test_example(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    with pytest.warns(taper_frontend.ExportWarning) as caught:
        names = runpy.run_path(str(script))
    assert any(op in str(each.message) for each in caught for op in ("1 SNAKE", "16 SNAKE"))
    (node,) = [node for node in names["plan"].nodes if node.op == "SNAKE"]
    assert node.source.startswith("example.py:")
    assert str(tmp_path) not in node.source
