"""Turn text into embeddings with exported encoders: sentences in, arrays out.

>>> encoder = taper_runtime.text.Encoder("model.taper")
>>> embeddings = encoder.encode(["A sentence.", "Another one."])

It needs ``pip install 'taper-runtime[text]'``: the package tokenizers, which is imported when an
encoder is opened. The rest of Taper does not import this package.
"""

from taper_runtime.text.encoder import Encoder

__all__ = ["Encoder"]
