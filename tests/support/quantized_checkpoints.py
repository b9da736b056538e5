"""Checkpoints in the layouts that quantizers publish, and what their own decoding gives.

Each function draws numbers, packs them one by one as the layout says, and decodes them by its
formula: nothing of the readers is used. A weight is ``[N, K]``.
"""

from __future__ import annotations

import struct

import numpy as np
import torch

N, K, GROUP = 32, 256, 32
FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def words(rows, columns):
    return np.zeros((rows, columns), np.uint32)


def ints(array):
    return torch.from_numpy(array.view(np.int32))


def halves(rng, *shape):
    """Positive scales, float16."""
    return (rng.uniform(0.01, 0.1, shape)).astype(np.float16)


def gptq(rng, bits=4, added=1, config=None, order=False):
    """https://github.com/AutoGPTQ/AutoGPTQ: along K, and zero points minus 1 in version 1."""
    each = 32 // bits
    q = rng.integers(0, 2**bits, (K, N))
    zeros = rng.integers(added, 2**bits, (K // GROUP, N))
    scales = halves(rng, K // GROUP, N)
    qweight, qzeros = words(K // each, N), words(K // GROUP, N // each)
    for k, n in np.ndindex(K, N):
        qweight[k // each, n] |= np.uint32(q[k, n] << bits * (k % each))
    for g, n in np.ndindex(K // GROUP, N):
        qzeros[g, n // each] |= np.uint32((zeros[g, n] - added) << bits * (n % each))
    g_idx = np.arange(K, dtype=np.int32) // GROUP
    if order:
        g_idx = rng.permutation(g_idx).astype(np.int32)
    weight = scales[g_idx].astype(np.float32) * (q - zeros[g_idx])
    tensors = {"qweight": ints(qweight), "qzeros": ints(qzeros)}
    tensors |= {"scales": torch.from_numpy(scales), "g_idx": torch.from_numpy(g_idx)}
    config = config or {"quant_method": "gptq", "checkpoint_format": "gptq"}
    return tensors, {"bits": bits, **config}, weight.T


def awq(rng, config=None):
    """https://github.com/casper-hansen/AutoAWQ: 8 columns in an int32, in their own order."""
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    q, zeros = (rng.integers(0, 16, (rows, N)) for rows in (K, K // GROUP))
    scales = halves(rng, K // GROUP, N)
    packed = []
    for numbers in (q, zeros):
        to = words(len(numbers), N // 8)
        for row, n, i in np.ndindex(len(numbers), N // 8, 8):
            to[row, n] |= np.uint32(numbers[row, 8 * n + order[i]] << 4 * i)
        packed.append(ints(to))
    group = np.arange(K) // GROUP
    weight = (q - zeros[group]) * scales[group].astype(np.float32)
    tensors = {"qweight": packed[0], "qzeros": packed[1], "scales": torch.from_numpy(scales)}
    return tensors, config or {"quant_method": "awq", "bits": 4, "version": "gemm"}, weight.T


def pack_quantized(rng, bits=4, zeros=False, order=False):
    """compressed-tensors: along K, plus 2 ** (bits - 1); zero points along N."""
    each, middle = 32 // bits, 2 ** (bits - 1)
    q = rng.integers(-middle, middle, (N, K))
    points = rng.integers(-middle, middle, (N, K // GROUP)) * zeros
    scales = torch.from_numpy(halves(rng, N, K // GROUP)).bfloat16()
    packed, packed_zeros = words(N, K // each), words(N // each, K // GROUP)
    for n, k in np.ndindex(N, K):
        packed[n, k // each] |= np.uint32((q[n, k] + middle) << bits * (k % each))
    for n, g in np.ndindex(N, K // GROUP):
        packed_zeros[n // each, g] |= np.uint32((points[n, g] + middle) << bits * (n % each))
    g_idx = np.arange(K, dtype=np.int32) // GROUP
    if order:
        g_idx = rng.permutation(g_idx).astype(np.int32)
    weight = (q - points[:, g_idx]) * scales.float().numpy()[:, g_idx]
    tensors = {"weight_packed": ints(packed), "weight_scale": scales}
    tensors["weight_shape"] = torch.tensor([N, K])
    if zeros:
        tensors["weight_zero_point"] = ints(packed_zeros)
    if order:
        tensors["weight_g_idx"] = torch.from_numpy(g_idx)
    return tensors, {"quant_method": "compressed-tensors", "format": "pack-quantized"}, weight


def int_quantized(rng, zeros=False):
    q = rng.integers(-128, 128, (N, K)).astype(np.int8)
    scales = torch.from_numpy(halves(rng, N, 1)).bfloat16()
    points = rng.integers(-128, 128, (N, 1)).astype(np.int8)
    tensors = {"weight": torch.from_numpy(q), "weight_scale": scales}
    if zeros:
        tensors["weight_zero_point"] = torch.from_numpy(points)
    weight = (q.astype(np.float32) - points * np.float32(zeros)) * scales.float().numpy()
    return tensors, {"quant_method": "compressed-tensors", "format": "int-quantized"}, weight


def float8(rng, *shape, dtype=torch.float8_e4m3fn):
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32) * 40).to(dtype)


def float_quantized(rng, dtype=torch.float8_e4m3fn):
    q = float8(rng, N, K, dtype=dtype)
    scales = torch.from_numpy(halves(rng, N, 1)).float()
    weight = q.float() * scales
    config = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    return {"weight": q, "weight_scale": scales}, config, weight.numpy()


def block_fp8(rng, block=(16, 128)):
    """DeepSeek: a float32 scale for each block of rows and columns."""
    q = float8(rng, N, K)
    counts = -(-N // block[0]), -(-K // block[1])
    scales = torch.from_numpy(halves(rng, *counts)).float()
    whole = scales.repeat_interleave(block[0], 0)[:N].repeat_interleave(block[1], 1)[:, :K]
    tensors = {"weight": q, "weight_scale_inv": scales}
    config = {"quant_method": "fp8", "weight_block_size": [*block]}
    return tensors, config, (q.float() * whole).numpy()


def two_in_a_byte(codes):
    low, high = codes[..., ::2], codes[..., 1::2]
    return torch.from_numpy((low | high << 4).astype(np.uint8))


def nvfp4(rng, modelopt=False, number=448.0):
    """Two codes in a byte; scales of 16 in float8, and one number for all."""
    codes = rng.integers(0, 16, (N, K))
    scales = float8(rng, N, K // 16).float().abs().clamp(1).to(torch.float8_e4m3fn)
    common = torch.tensor([number])
    numbers = torch.tensor(FP4)[torch.from_numpy(codes)].view(N, -1, 16)
    of = scales.float() * common if modelopt else scales.float() / common
    names = ("weight", "weight_scale_2") if modelopt else ("weight_packed", "weight_global_scale")
    tensors = {names[0]: two_in_a_byte(codes), "weight_scale": scales, names[1]: common}
    config = {"quant_method": "modelopt" if modelopt else "compressed-tensors"}
    return tensors, config, (numbers * of[..., None]).view(N, K).numpy()


def mxfp4(rng):
    """gpt-oss: the parameter is transposed, and has no ending of its own."""
    codes = rng.integers(0, 16, (N, K))
    exponents = rng.integers(110, 130, (N, K // 32)).astype(np.uint8)
    numbers = np.array(FP4, np.float32)[codes].reshape(N, -1, 32)
    weight = np.ldexp(numbers, exponents.astype(int)[..., None] - 127).reshape(N, K)
    blocks = two_in_a_byte(codes).view(1, N, K // 32, 16)
    tensors = {"_blocks": blocks, "_scales": torch.from_numpy(exponents)[None]}
    return tensors, {"quant_method": "mxfp4"}, weight.T[None]


def mxfp4_packed(rng):
    """compressed-tensors: two codes in a byte, and an exponent for each 32."""
    codes = rng.integers(0, 16, (N, K))
    exponents = rng.integers(110, 130, (N, K // 32)).astype(np.uint8)
    numbers = np.array(FP4, np.float32)[codes].reshape(N, -1, 32)
    weight = np.ldexp(numbers, exponents.astype(int)[..., None] - 127).reshape(N, K)
    tensors = {"weight_packed": two_in_a_byte(codes), "weight_scale": torch.from_numpy(exponents)}
    config = {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}
    return tensors, config, weight


def hqq(rng, bits=4):
    """Rows of groups; the first part of them in the highest bits."""
    q = rng.integers(0, 2**bits, (N * K // GROUP, GROUP))
    scales = halves(rng, len(q), 1)
    zeros = rng.uniform(0, 2**bits, (len(q), 1)).astype(np.float16)
    each = 8 // bits
    packed = np.zeros((len(q) // each, GROUP), np.uint8)
    for i, part in enumerate(np.split(q, each)):
        packed |= (part << (8 - bits * (i + 1))).astype(np.uint8)
    tensors = {"W_q": packed, "scale": scales, "zero": zeros}
    tensors = {name: torch.from_numpy(array) for name, array in tensors.items()}
    tensors |= {"nbits": torch.tensor([bits]), "axis": torch.tensor([1])}
    weight = (q - zeros.astype(np.float32)) * scales.astype(np.float32)
    return tensors, {"quant_method": "hqq"}, weight.astype(np.float32).reshape(N, K)


_AUTO = {"quant_method": "auto-round", "bits": 4}
#: A drawn weight by the name of its layout: parts, quantization_config, and the decoded weight.
LAYOUTS = {
    "GPTQ": gptq,
    "GPTQ, version 2": lambda rng: gptq(
        rng, added=0, config={"quant_method": "gptq", "checkpoint_format": "gptq_v2"}
    ),
    "GPTQ of 2 bits": lambda rng: gptq(rng, bits=2),
    "GPTQ of 8 bits": lambda rng: gptq(rng, bits=8),
    "GPTQ, groups by importance": lambda rng: gptq(rng, order=True),
    "AWQ": awq,
    "AutoRound as GPTQ": lambda rng: gptq(
        rng, config={**_AUTO, "packing_format": "auto_round:auto_gptq"}
    ),
    "AutoRound as AWQ": lambda rng: awq(rng, {**_AUTO, "packing_format": "auto_round:auto_awq"}),
    "pack-quantized": pack_quantized,
    "pack-quantized, asymmetric": lambda rng: pack_quantized(rng, zeros=True),
    "pack-quantized, groups by importance": lambda rng: pack_quantized(rng, order=True),
    "pack-quantized of 8 bits": lambda rng: pack_quantized(rng, bits=8),
    "int-quantized": int_quantized,
    "int-quantized, asymmetric": lambda rng: int_quantized(rng, zeros=True),
    "float-quantized": float_quantized,
    "float-quantized, e5m2": lambda rng: float_quantized(rng, torch.float8_e5m2),
    "blocks of fp8": block_fp8,
    "blocks of fp8 that do not divide": lambda rng: block_fp8(rng, (20, 96)),
    "NVFP4": nvfp4,
    "NVFP4 by a power of 2": lambda rng: nvfp4(rng, number=64.0),
    "NVFP4 of ModelOpt": lambda rng: nvfp4(rng, True, 0.0037),
    "MXFP4": mxfp4,
    "MXFP4 of compressed-tensors": mxfp4_packed,
    "HQQ": hqq,
    "HQQ of 2 bits": lambda rng: hqq(rng, 2),
}


# -- GGUF ------------------------------------------------------------------------------------------


def _sixes(scales, offsets):
    """Factors of 6 bits in 12 bytes."""
    packed = bytearray(12)
    for j in range(8):
        if j < 4:
            packed[j] |= scales[j]
            packed[4 + j] |= offsets[j]
        else:
            packed[4 + j] |= (scales[j] & 15) | (offsets[j] & 15) << 4
            packed[j - 4] |= scales[j] >> 4 << 6
            packed[j] |= offsets[j] >> 4 << 6
    return bytes(packed)


def _q4_0(rng, d, m):
    q = rng.integers(0, 16, 32)
    return d.tobytes() + bytes((q[:16] | q[16:] << 4).tolist()), (q - 8) * np.float32(d)


def _q4_1(rng, d, m):
    q = rng.integers(0, 16, 32)
    packed = d.tobytes() + m.tobytes() + bytes((q[:16] | q[16:] << 4).tolist())
    return packed, q * np.float32(d) + np.float32(m)


def _q5_0(rng, d, m):
    q = rng.integers(0, 32, 32)
    high = sum(int(q[i] >> 4) << i for i in range(32)).to_bytes(4, "little")
    return d.tobytes() + high + bytes(((q[:16] & 15) | (q[16:] & 15) << 4).tolist()), (
        q - 16
    ) * np.float32(d)


def _q8_0(rng, d, m):
    q = rng.integers(-128, 128, 32).astype(np.int8)
    return d.tobytes() + q.tobytes(), q * np.float32(d)


def _by_sixes(rng, d, m, bits):
    q = rng.integers(0, 2**bits, (8, 32))
    scales, offsets = rng.integers(0, 64, (2, 8)).tolist()
    high = bytearray(32)
    for i, j in np.ndindex(8, 32):
        high[j] |= int(q[i, j] >> 4) << i
    low = b"".join(bytes(((q[i] & 15) | (q[i + 1] & 15) << 4).tolist()) for i in range(0, 8, 2))
    packed = d.tobytes() + m.tobytes() + _sixes(scales, offsets)
    packed += (bytes(high) if bits == 5 else b"") + low
    scale = np.float32(d) * np.array(scales, np.float32)[:, None]
    return packed, (q * scale - np.float32(m) * np.array(offsets, np.float32)[:, None]).reshape(-1)


def _q6_k(rng, d, m):
    q = rng.integers(0, 64, 256)
    factors = rng.integers(-128, 128, 16).astype(np.int8)
    low, high = bytearray(128), bytearray(64)
    for i in range(256):
        half, part, at = i // 128, i % 128 // 32, i % 32
        low[64 * half + part % 2 * 32 + at] |= int(q[i] & 15) << part // 2 * 4
        high[32 * half + at] |= int(q[i] >> 4) << 2 * part
    scale = np.repeat(np.float32(d) * factors.astype(np.float32), 16)
    return bytes(low) + bytes(high) + factors.tobytes() + d.tobytes(), (q - 32) * scale


def _mxfp4(rng, d, m):
    q, exponent = rng.integers(0, 16, 32), int(rng.integers(110, 130))
    packed = bytes([exponent]) + bytes((q[:16] | q[16:] << 4).tolist())
    return packed, np.array(FP4, np.float32)[q] * np.float32(2.0 ** (exponent - 127))


#: For each type its code in a file, and what draws a block of it.
BLOCKS = {
    "Q4_0": (2, _q4_0),
    "Q4_1": (3, _q4_1),
    "Q5_0": (6, _q5_0),
    "Q8_0": (8, _q8_0),
    "Q4_K": (12, lambda rng, d, m: _by_sixes(rng, d, m, 4)),
    "Q5_K": (13, lambda rng, d, m: _by_sixes(rng, d, m, 5)),
    "Q6_K": (14, _q6_k),
    "MXFP4": (39, _mxfp4),
}


def gguf_weight(rng, kind):
    """The bytes of a weight [N, K], and its numbers."""
    code, draw = BLOCKS[kind]
    packed, numbers, count = [], [], 0
    while count < N * K:
        d, m = (np.float16(rng.uniform(-0.1, 0.1)) for _ in range(2))
        block, values = draw(rng, d, m)
        packed.append(block)
        numbers.append(values.astype(np.float32))
        count += len(values)
    return code, b"".join(packed), np.concatenate(numbers).reshape(N, K)


def _text(text):
    return struct.pack("<Q", len(text)) + text.encode()


def _value(value):
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<II", 4, value)


def gguf_file(tensors, version=3, alignment=64, metadata=None):
    """A file of tensors by name: the code of their type, their shape and bytes."""
    metadata = metadata or {}
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), 3 + len(metadata))
    head += b"".join(_text(key) + _value(value) for key, value in metadata.items())
    head += _text("general.alignment") + struct.pack("<II", 4, alignment)
    head += _text("general.name") + struct.pack("<I", 8) + _text("a model")
    head += _text("tokens") + struct.pack("<IIQ", 9, 8, 2) + _text("a") + _text("b")
    data = b""
    for name, (code, shape, packed) in tensors.items():
        data += bytes(-len(data) % alignment)
        head += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        head += struct.pack("<IQ", code, len(data))
        data += packed
    return head + bytes(-len(head) % alignment) + data
