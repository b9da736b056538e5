"""Compute products of matrices on a GPU by NVIDIA: a delegate that a program names.

It needs CUDA's driver, cuBLAS and NVRTC, which are opened when the first session asks for it.

>>> from cuda_delegate import CudaDelegate, compile_subgraph, cuda_subgraphs
>>> register_backend("cuda", compile_subgraph, CudaDelegate)
>>> plan = taper_frontend.export(module, args, partition=cuda_subgraphs, delegate="cuda")
>>> options.delegates = {"cuda": CudaDelegate}
"""

from cuda_delegate.delegate import Counts, CudaDelegate
from cuda_delegate.driver import CudaError
from cuda_delegate.subgraphs import compile_subgraph, cuda_subgraphs

__all__ = ["Counts", "CudaDelegate", "CudaError", "compile_subgraph", "cuda_subgraphs"]
