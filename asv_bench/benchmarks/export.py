"""Exporting a model."""

import taper_frontend
from models import block, mlp


class Export:
    params = ["mlp", "block"]
    param_names = ["model"]
    timeout = 120

    def setup(self, model):
        self.case = mlp(32, 512) if model == "mlp" else block(1, 16, 64)

    def time_export(self, model):
        taper_frontend.export(*self.case, verify=False)
