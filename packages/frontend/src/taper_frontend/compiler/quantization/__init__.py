"""Store the float weights of a graph in fewer bits, without torch.

``schemes`` says how a weight is stored, ``rounding`` computes its integers and scales, ``weights``
finds the weights of a graph and replaces them, and ``choose`` decides which gets which scheme.
"""
