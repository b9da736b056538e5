"""Read checkpoints of quantized weights, and give a module their weights as they are stored.

:mod:`.gguf` and :mod:`.weight_layouts` read files into one form, :class:`.weight.QuantizedWeight`,
with numpy alone. :mod:`.load` makes parameters of a module compute their values from it. To add a
scheme, write a reader in :mod:`.weight_layouts` and a row in its table.
"""
