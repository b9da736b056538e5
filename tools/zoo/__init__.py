"""Architectures people use, small and with seeded weights, and a report on all of them.

`nox -s models` exports each, runs it without torch and writes docs/results/models.md. The tests of
whole models take theirs from here.
"""

from tools.zoo import unseen, untried
from tools.zoo.audio import AUDIO
from tools.zoo.control_flow import CONTROL_FLOW
from tools.zoo.encoder_decoder import ENCODER_DECODER
from tools.zoo.layers import LAYERS
from tools.zoo.newcomers import NEWCOMERS
from tools.zoo.signals import SIGNALS
from tools.zoo.text import TEXT
from tools.zoo.vision import VISION

#: Group -> name of an architecture -> how to make it.
GROUPS = {
    "text": TEXT,
    "vision": VISION,
    "audio": AUDIO,
    "encoder-decoder": ENCODER_DECODER,
    "layers": LAYERS,
    "signals": SIGNALS,
    "control flow": CONTROL_FLOW,
}

#: The same with the architectures of packages that only `nox -s models` installs.
ALL_GROUPS = {
    **GROUPS,
    "newcomers": NEWCOMERS,
    "unseen": unseen.FIXED,
    "unseen, varying": unseen.VARYING,
    "untried": untried.FIXED,
    "untried, varying": untried.VARYING,
}
