"""Handlers against PyTorch's own samples, which nobody here wrote.

The samples of a whole family of ops are the calls of one module: capture has a price per module
that dwarfs the price per call. Arguments that are not tensors are baked in.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from edge_values import KINDS, TORCH_DIFFERS, with_edges
from lowering import evaluate_graph, lower_model, tensors_in
from marks import REFERENCE, some
from taper_runtime.base.random_state import new_state

pytestmark = REFERENCE

DTYPES = some((torch.float32, torch.int64, torch.bool), (torch.int64, torch.bool))

#: First samples of an op, and of a dtype but float32 where handlers only move or make values: what
#: they do of their arguments float32 shows.
SAMPLES, FEW = 4, 2
MOVEMENT = frozenset({"casts", "copies", "creation", "views"})

#: OpInfo names, standing for all their variants.
FAMILIES = {
    "unary": """
        abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh deg2rad erf exp expm1 floor
        frac isfinite isinf isnan isneginf isposinf log log10 log1p log2 logical_not logit
        nan_to_num neg positive rad2deg reciprocal round rsqrt sigmoid sign sin sinc sinh sqrt
        square tan tanh trunc
    """,
    "activations": """
        nn.functional.celu nn.functional.elu nn.functional.gelu nn.functional.glu
        nn.functional.hardshrink nn.functional.hardsigmoid nn.functional.hardswish
        nn.functional.hardtanh nn.functional.leaky_relu nn.functional.logsigmoid
        nn.functional.mish nn.functional.prelu nn.functional.relu nn.functional.relu6
        nn.functional.selu nn.functional.silu nn.functional.softplus nn.functional.softshrink
        nn.functional.softsign nn.functional.tanhshrink nn.functional.threshold
    """,
    "arithmetic": """
        __radd__ __rdiv__ __rmul__ __rpow__ __rsub__ add addcdiv addcmul atan2 clamp clamp_max
        clamp_min div float_power floor_divide fmod lerp logaddexp maximum minimum mul pow
        remainder rsub sub true_divide xlogy
    """,
    "logic": """
        __rand__ __ror__ __rxor__ bitwise_and bitwise_or bitwise_xor eq fill ge gt heaviside
        isclose le logical_and logical_or logical_xor lt masked_fill ne where
    """,
    "casts": "bool byte char double float half int long short to",
    "views": """
        as_strided atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to chunk contiguous
        diagonal dsplit expand expand_as flatten hsplit movedim narrow permute ravel reshape select
        slice split split_with_sizes squeeze t tensor_split transpose unbind unflatten unsqueeze
        view vsplit
    """,
    "copies": """
        cat column_stack constant_pad_nd diag_embed dstack flip fliplr flipud hstack meshgrid
        nn.functional.pad nn.functional.pixel_shuffle nn.functional.pixel_unshuffle repeat
        repeat_interleave roll rot90 stack tile tril triu unfold vstack
    """,
    "reductions": """
        all amax amin aminmax any argmax argmin count_nonzero cumprod cumsum diff
        linalg.vector_norm logsumexp max mean min nanmean nansum norm prod std std_mean sum trace
        var var_mean
    """,
    "indexing": """
        __getitem__ argsort gather index_add index_copy index_fill index_put index_select
        masked_scatter msort nn.functional.embedding nn.functional.one_hot scatter scatter_add
        scatter_reduce select_scatter slice_scatter sort take take_along_dim topk
    """,
    "order": """
        bucketize cummax cummin isin kthvalue logcumsumexp median nanmedian searchsorted
    """,
    "special": """
        bitwise_left_shift bitwise_right_shift copysign digamma erfc erfinv fmax fmin frexp hypot i0
        ldexp lgamma nextafter signbit special.erfcx special.log_ndtr
    """,
    "distances": """
        addbmm cdist diagonal_scatter nn.functional.embedding_bag nn.functional.pdist put
    """,
    "creation": """
        arange eye full full_like linspace new_full new_ones new_zeros ones ones_like
        scalar_tensor tril_indices triu_indices zeros zeros_like
    """,
    "matrices": """
        __rmatmul__ addmm addmv addr baddbmm bmm dot einsum inner kron linalg.multi_dot matmul mm
        mv nn.functional.linear nn.functional.scaled_dot_product_attention outer tensordot
    """,
    "linalg": """
        cholesky cholesky_inverse cholesky_solve linalg.cholesky linalg.cholesky_ex
        linalg.cond linalg.cross linalg.det linalg.eigvalsh linalg.inv linalg.inv_ex linalg.lu
        linalg.lu_factor linalg.lu_factor_ex linalg.matrix_norm linalg.matrix_power
        linalg.matrix_rank linalg.norm linalg.pinv linalg.slogdet linalg.solve linalg.solve_ex
        linalg.solve_triangular linalg.svdvals linalg.tensorinv linalg.tensorsolve linalg.vander
        logdet matrix_exp pinverse triangular_solve
    """,
    "convolutions": """
        nn.functional.conv1d nn.functional.conv2d nn.functional.conv3d
        nn.functional.conv_transpose1d nn.functional.conv_transpose2d
        nn.functional.conv_transpose3d nn.functional.unfold
    """,
    "pooling": """
        nn.functional.adaptive_avg_pool1d nn.functional.adaptive_avg_pool2d
        nn.functional.adaptive_avg_pool3d
        nn.functional.adaptive_max_pool1d nn.functional.adaptive_max_pool2d
        nn.functional.adaptive_max_pool3d nn.functional.avg_pool1d nn.functional.avg_pool2d
        nn.functional.avg_pool3d nn.functional.max_pool1d nn.functional.max_pool2d
        nn.functional.max_pool3d nn.functional.max_unpool2d
    """,
    "sizes": """
        nn.functional.channel_shuffle nn.functional.interpolate nn.functional.upsample_bilinear
        nn.functional.upsample_nearest
    """,
    "norms": """
        log_softmax nn.functional.batch_norm nn.functional.cosine_similarity
        nn.functional.group_norm nn.functional.instance_norm nn.functional.layer_norm
        nn.functional.local_response_norm nn.functional.mse_loss
        nn.functional.normalize nn.functional.rms_norm nn.functional.softmin softmax
    """,
}

#: Families whose samples are drawn once more with values at the edge of float32: handlers combine
#: several ops for one of torch's.
EDGES = frozenset({"unary", "activations", "arithmetic", "logic", "special"})

#: What handlers that combine ops compute otherwise than torch: OpInfo name -> kinds, why.
CALLS_DIFFER = {
    "addcmul": (
        ("largest",),
        "torch rounds product and sum once, as float64 does: no product overflows by itself",
    ),
    "nn.functional.gelu": (
        ("infinity",),
        "on some CPUs torch's code for vectors multiplies an infinity by 0",
    ),
}

#: Samples no export can hold: their shapes depend on values, or they write to their inputs.
EXCLUDED = {
    "as_strided": lambda s: not s.input.is_contiguous() or s.input.storage_offset(),
    "index_put": lambda s: s.args[0][0].dtype == torch.bool and s.args[1].numel() > 1,
    "narrow": lambda s: isinstance(s.args[1], torch.Tensor),
    "nn.functional.batch_norm": lambda s: s.kwargs.get("training"),
    # torch.export makes native_dropout of it, which draws though it drops all
    "nn.functional.dropout": lambda s: s.kwargs.get("p") == 1,
    "nn.functional.embedding": lambda s: "max_norm" in s.kwargs,
    "nn.functional.one_hot": lambda s: s.kwargs.get("num_classes", -1) == -1,
    "nn.functional.scaled_dot_product_attention": lambda s: s.kwargs.get("dropout_p"),
    "repeat_interleave": lambda s: tensors_in([s.args, s.kwargs]),
    "tensor_split": lambda s: isinstance(s.args[0], torch.Tensor),
}

#: Of several equal elements torch may choose any: only floats, where there are none.
TIES = frozenset({"argsort", "kthvalue", "median", "msort", "nanmedian", "sort", "topk"})

#: Relative and absolute tolerance where torch's own is too strict: its float32 result of these
#: samples is 2e-5 from its float64 one.
TOLERANCES = {
    "linalg.cond": (1e-5, 1e-5),
    "linalg.pinv.hermitian": (1e-4, 1e-4),
    "matrix_exp": (1e-5, 1e-5),
    "nn.functional.conv3d": (1e-4, 5e-5),
    "nn.functional.conv_transpose3d": (1e-4, 5e-5),
    "nn.functional.scaled_dot_product_attention": (1e-4, 5e-5),
}

#: Variants of another kind than their name says.
OTHERS = frozenset({"norm.nuc", "as_strided.partial_views"})


class Calls(torch.nn.Module):
    """Calls of functions, each with tensors of its own among baked-in arguments."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def forward(self, *tensors):
        remaining = iter(tensors)
        results = []
        for function, *arguments in self.calls:
            args, kwargs = torch.utils._pytree.tree_map(
                lambda x: next(remaining) if isinstance(x, torch.Tensor) else x, arguments
            )
            results.append(function(*args, **kwargs))
        return results


def samples(op, dtype, count=SAMPLES):
    """First samples of an op that an export can hold."""
    # op.sample_inputs() would look through the call stack for every sample, which takes longest
    made = op.sample_inputs_func(op, "cpu", dtype, False)
    excluded = EXCLUDED.get(op.name, lambda sample: False)
    return list(itertools.islice((s for s in made if not excluded(s)), count))


@pytest.mark.filterwarnings("ignore::UserWarning")  # the samples try deprecated and odd arguments
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_samples(family, dtype):
    torch.manual_seed(0)
    names = FAMILIES[family].split()
    assert set(names) <= {op.name for op in op_db}
    labels, calls = [], []
    count = FEW if family in MOVEMENT and dtype != torch.float32 else SAMPLES
    for op in op_db:
        if op.name not in names or op.full_name in OTHERS or dtype not in op.dtypes:
            continue
        if op.name in TIES and dtype != torch.float32:
            continue
        for sample in samples(op, dtype, count):
            labels.append((op.full_name, sample))
            calls.append((op.op, (sample.input, *sample.args), sample.kwargs))
    if not calls:
        pytest.skip(f"no sample of {dtype}")
    module = Calls(calls)
    tensors = tensors_in([arguments for _, *arguments in calls])
    wanted = module(*tensors)
    graph = lower_model(module, *tensors).graph
    check(labels, evaluate_graph(graph, tensors), wanted, dtype)
    if family not in EDGES or dtype != torch.float32:
        return
    for kind in KINDS:
        rng = np.random.default_rng(0)
        edged = [torch.from_numpy(with_edges(x.numpy(), kind, rng).copy()) for x in tensors]
        check(labels, evaluate_graph(graph, edged), module(*edged), dtype, kind)


def check(labels, got, wanted, dtype, kind=""):
    """Compare the results of calls, on samples that have values of a kind in them."""
    got = iter(got)
    for (name, sample), want in zip(labels, wanted, strict=True):
        rtol, atol = TOLERANCES.get(name, (None, None)) if dtype.is_floating_point else (None, None)
        op = TORCH_DIFFERS.get(name.rpartition(".")[2].upper(), ((), ""))
        differs, _ = CALLS_DIFFER.get(name, op)
        for torchs in tensors_in(want):
            ours = next(got)
            if kind in differs:
                continue
            try:
                torch.testing.assert_close(
                    ours, torchs, rtol=rtol, atol=atol, equal_nan=True, check_stride=False
                )
            except AssertionError as error:
                if not is_rounded(ours, torchs):
                    raise AssertionError(f"{kind} {name}{sample.summary()}: {error}") from error
    assert next(got, None) is None


def is_rounded(ours, torchs):
    """Whether sums in another order explain it, which torch's own kernels have on every CPU."""
    if not torchs.is_floating_point() or ours.shape != torchs.shape:
        return False
    distance = torch.linalg.vector_norm(ours.double() - torchs.double())
    return distance <= 4 * torch.finfo(torchs.dtype).eps * torch.linalg.vector_norm(torchs.double())


def test_what_rounding_explains():
    x = torch.tensor([1000.0, 1e-3])
    assert is_rounded(x + torch.tensor([0.0, 1e-4]), x)
    assert not is_rounded(x + 1, x)
    assert not is_rounded(x * torch.nan, x)


#: OpInfo names of functions that draw, and of methods that fill a tensor.
DRAWING = """
    bernoulli multinomial nn.functional.alpha_dropout nn.functional.dropout
    nn.functional.dropout2d nn.functional.dropout3d nn.functional.feature_alpha_dropout normal
    rand_like randint randint_like randn randn_like
"""
FILLING = "cauchy exponential geometric log_normal uniform"


def drawing_function(name):
    """The function itself: the op of an OpInfo sets a seed of its own."""
    if name in FILLING.split():
        return lambda x, *args: getattr(x.clone(), f"{name}_")(*args)
    module, _, last = name.rpartition(".")
    return getattr(torch.nn.functional if module else torch, last)


@pytest.mark.filterwarnings("ignore::UserWarning")  # dropout of images without a batch
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_samples_of_what_draws(dtype):
    """All draw from one generator, so that one number too many would be seen in all that follow."""
    names = (DRAWING + FILLING).split()
    assert set(names) <= {op.name for op in op_db}
    labels, calls = [], []
    for op in op_db:
        if op.name in names and not op.variant_test_name and dtype in op.dtypes:
            function = drawing_function(op.name)
            for sample in samples(op, dtype):
                labels.append(op.name)
                calls.append((function, (sample.input, *sample.args), sample.kwargs))
    module = Calls(calls).eval()
    tensors = tensors_in([arguments for _, *arguments in calls])
    graph = lower_model(module, *tensors).graph
    (state,) = graph.states
    torch.manual_seed(5)
    wanted = module(*tensors)
    (*got, _) = evaluate_graph(graph, [*tensors, torch.from_numpy(new_state(5))])
    assert graph.reads[-1] == state.name
    for name, mine, torchs in zip(labels, got, wanted, strict=True):
        torch.testing.assert_close(mine, torchs, check_stride=False, msg=lambda m, n=name: n + m)
