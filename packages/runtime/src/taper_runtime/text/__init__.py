"""Run exported models on text: embeddings of sentences, scores of pairs, and texts.

>>> encoder = taper_runtime.text.Encoder("encoder.taper")
>>> embeddings = encoder.encode(["A sentence.", "Another one."])
>>> ranker = taper_runtime.text.CrossEncoder("cross_encoder.taper")
>>> best = ranker.rank("A question?", ["An answer.", "Another one."], top_k=1)
>>> writer = taper_runtime.text.TextGenerator("decoder.taper")
>>> for piece in writer.generate("Once upon a time", max_new_tokens=50):
...     print(piece, end="")

It needs ``pip install 'taper-runtime[text]'``: the package tokenizers, which is imported when a
plan is opened, jinja2, which a chat imports, and llguidance, which schemas and grammars import. The
rest of Taper does not import this package.
"""

from taper_runtime.text.cross_encoder import CrossEncoder
from taper_runtime.text.encoder import Encoder
from taper_runtime.text.text_generator import TextGenerator

__all__ = ["CrossEncoder", "Encoder", "TextGenerator"]
