# SPDX-License-Identifier: Apache-2.0
"""The tiny models of tests/support/tiny_model.h in numpy: the same generator, the same list of tensors, the same bits.

Written from the header's comment, not from its .c file, so that `golden.py check` compares two implementations.
Also here: bf16, e4m3, block quantisation, and a plain safetensors reader and writer.
"""

import dataclasses
import json
import struct

import numpy as np

VOCAB, HIDDEN, Q_RANK, KV_RANK = 512, 256, 128, 512
ROPE = 64
INDEX_HEADS, INDEX_DIM = 32, 128
DENSE_WIDTH, EXPERT_WIDTH, EXPERTS = 512, 128, 16
EXPERTS_PER_TOKEN, ROUTED_SCALE = 4, 2.5


@dataclasses.dataclass(frozen=True)
class Spec:
    """What the two families differ in. `indexers` has a letter for each layer: F with an indexer, S without."""

    family: str
    indexers: str
    nope: int
    value: int
    groups: int
    groups_kept: int
    eps: float  # of every norm but the index key's (1e-6) and the latents'
    latent_eps: float
    theta: float
    yarn: bool
    pairs: bool  # the indexer rotates pairs (2i, 2i+1), not (i, i+32)
    pow2: bool  # scales of fp8 weights are powers of two
    heads: int = 8

    @property
    def layers(self):
        return len(self.indexers)

    def has_indexer(self, layer):
        """The MTP layer, number `layers`, always has one."""
        return layer >= self.layers or self.indexers[layer] == "F"


DEEPSEEK = Spec("deepseek_v32", "FFFF", 128, 128, 4, 2, 1e-6, 1e-6, 1e4, True, False, True)
# GLM-5.2; the latents' eps is what transformers has, not what engines serve with
GLM = Spec("glm_moe_dsa", "FFSFSS", 192, 256, 1, 1, 1e-5, 1e-6, 8e6, False, True, False)
GLM_SERVED = dataclasses.replace(GLM, latent_eps=1e-5)
GLM_FULL = dataclasses.replace(GLM, indexers="FFFFFF", theta=1e6)  # GLM-5

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


# ---------------------------------------------------------------------------------------------------------------------
# Generator


def mix(x):
    """The finaliser of splitmix64, on Python integers or uint64 arrays."""
    if isinstance(x, int):
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        return x ^ (x >> 31)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def fnv1a64(name):
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def bits(seed, name, count):
    key = np.uint64(mix(seed ^ fnv1a64(name)))
    return mix(key + np.arange(count, dtype=np.uint64) * np.uint64(GOLDEN))


def step(kind, columns):
    """Float step of an Irwin-Hall sum: std * sqrt(3) / 2^16."""
    sqrt_3, sqrt_3_over_2 = np.float32(float.fromhex("0x1.bb67aep+0")), np.float32(float.fromhex("0x1.3988e2p+0"))
    if kind == "embed":
        return sqrt_3 * np.float32(2.0**-16)
    if kind == "key_bias":
        return np.float32(float.fromhex("0x1.62b958p-3")) * np.float32(2.0**-16)
    if kind == "score":
        return np.float32(float.fromhex("0x1.62b958p-4")) * np.float32(2.0**-16)
    log = columns.bit_length() - 1
    assert kind in ("linear", "plain") and columns == 1 << log
    return (sqrt_3_over_2 if log % 2 else sqrt_3) * np.float32(2.0 ** (-16 - log // 2))


def fill(seed, name, shape, kind):
    x = bits(seed, name, int(np.prod(shape)))
    if kind in ("norm", "key_norm"):
        values = ((x >> np.uint64(41)) + np.uint64(1 << 22)).astype(np.float32) * np.float32(2.0**-23)
    else:
        fields = sum((x >> np.uint64(16 * i)) & np.uint64(0xFFFF) for i in range(4))
        values = (fields.astype(np.int64) - 2 * 65535).astype(np.float32) * step(kind, shape[-1])
    assert values.dtype == np.float32
    return values.reshape(shape)


def tokens(seed, count):
    """Ids 3..507: bytes and merges, no special token."""
    x = bits(seed, "tokens", count)
    return (3 + (((x >> np.uint64(32)) * np.uint64(505)) >> np.uint64(32))).astype(np.int64)


# ---------------------------------------------------------------------------------------------------------------------
# Small floats


def bf16_codes(values):
    """Upper halves of the nearest bfloat16, ties to even."""
    x = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((x + np.uint32(0x7FFF) + ((x >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def bf16(values):
    return (bf16_codes(values).astype(np.uint32) << np.uint32(16)).view(np.float32)


def e4m3_table():
    """The 127 finite non-negative values, by code."""
    codes = np.arange(127)
    exponent, fraction = codes >> 3, codes & 7
    return np.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0 ** (exponent - 10.0)).astype(np.float32)


def e4m3_codes(values):
    """Nearest code by search among all values, ties to the even code, saturating."""
    table = e4m3_table().astype(np.float64)
    magnitude = np.minimum(np.abs(values.astype(np.float64)), 448.0)
    low = np.clip(np.searchsorted(table, magnitude, side="right") - 1, 0, 125)
    below, above = magnitude - table[low], table[low + 1] - magnitude
    code = np.where((above < below) | ((above == below) & (low % 2 == 1)), low + 1, low)
    return (code + np.where(np.signbit(values), 128, 0)).astype(np.uint8)


def e4m3_values(codes):
    table = np.concatenate([e4m3_table(), [np.float32(np.nan)]])
    return np.where(codes & 128, -table[codes & 127], table[codes & 127]).astype(np.float32)


def pow2_scale(amax):
    """2^ceil(log2(max(amax, 1e-4) / 448)), by comparison with 448 * 2^k."""
    amax = np.maximum(amax.astype(np.float32), np.float32(1e-4)).astype(np.float64)
    _, exponent = np.frexp(amax / 448.0)  # amax/448 in [2^(e-1), 2^e)
    scale = np.ldexp(1.0, exponent)
    return np.where(amax <= 448.0 * (scale / 2), scale / 2, scale).astype(np.float32)


def quantise_vectors(values, block):
    """Codes and scales of blocks of `block` along the last axis."""
    blocks = values.reshape(*values.shape[:-1], values.shape[-1] // block, block)
    scales = pow2_scale(np.abs(blocks).max(-1))
    return e4m3_codes(blocks / scales[..., None]).reshape(values.shape), scales


def dequantise_vectors(codes, scales):
    blocks = e4m3_values(codes).reshape(*scales.shape, -1)
    return (blocks * scales[..., None]).reshape(codes.shape)


def quantise_matrix(matrix, pow2):
    """Codes and scales of 128x128 blocks."""
    rows, columns = matrix.shape
    scales = np.empty((-(-rows // 128), -(-columns // 128)), np.float32)
    codes = np.empty(matrix.shape, np.uint8)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            at = np.s_[128 * i : 128 * (i + 1), 128 * j : 128 * (j + 1)]
            amax = np.maximum(np.abs(matrix[at]).max(), np.float32(1e-4))
            scales[i, j] = pow2_scale(amax) if pow2 else amax / np.float32(448)
            codes[at] = e4m3_codes(matrix[at] / scales[i, j])
    return codes, scales


def dequantise_matrix(codes, scales):
    wide = np.repeat(np.repeat(scales, 128, 0), 128, 1)[: codes.shape[0], : codes.shape[1]]
    return e4m3_values(codes) * wide


# ---------------------------------------------------------------------------------------------------------------------
# Tensors


def layer_tensors(spec, layer):
    prefix, heads = f"model.layers.{layer}.", spec.heads
    attention, indexer, mlp = prefix + "self_attn.", prefix + "self_attn.indexer.", prefix + "mlp."
    yield prefix + "input_layernorm.weight", (HIDDEN,), "norm"
    yield attention + "q_a_proj.weight", (Q_RANK, HIDDEN), "linear"
    yield attention + "q_a_layernorm.weight", (Q_RANK,), "norm"
    yield attention + "q_b_proj.weight", (heads * (spec.nope + ROPE), Q_RANK), "linear"
    yield attention + "kv_a_proj_with_mqa.weight", (KV_RANK + ROPE, HIDDEN), "linear"
    yield attention + "kv_a_layernorm.weight", (KV_RANK,), "norm"
    yield attention + "kv_b_proj.weight", (heads * (spec.nope + spec.value), KV_RANK), "linear"
    yield attention + "o_proj.weight", (HIDDEN, heads * spec.value), "linear"
    if spec.has_indexer(layer):
        yield indexer + "wq_b.weight", (INDEX_HEADS * INDEX_DIM, Q_RANK), "linear"
        yield indexer + "wk.weight", (INDEX_DIM, HIDDEN), "linear"
        yield indexer + "k_norm.weight", (INDEX_DIM,), "key_norm"
        yield indexer + "k_norm.bias", (INDEX_DIM,), "key_bias"
        yield indexer + "weights_proj.weight", (INDEX_HEADS, HIDDEN), "plain"
    yield prefix + "post_attention_layernorm.weight", (HIDDEN,), "norm"
    mlps = [(mlp, DENSE_WIDTH)]
    if layer > 0:
        yield mlp + "gate.weight", (EXPERTS, HIDDEN), "plain"
        yield mlp + "gate.e_score_correction_bias", (EXPERTS,), "score"
        mlps = [(f"{mlp}experts.{j}.", EXPERT_WIDTH) for j in range(EXPERTS)]
        mlps.append((mlp + "shared_experts.", EXPERT_WIDTH))
    for name, width in mlps:
        yield name + "gate_proj.weight", (width, HIDDEN), "linear"
        yield name + "up_proj.weight", (width, HIDDEN), "linear"
        yield name + "down_proj.weight", (HIDDEN, width), "linear"


def model_tensors(spec):
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN), "embed"
    for n in range(spec.layers):
        yield from layer_tensors(spec, n)
    yield "model.norm.weight", (HIDDEN,), "norm"
    yield "lm_head.weight", (VOCAB, HIDDEN), "plain"
    mtp = f"model.layers.{spec.layers}."
    yield mtp + "enorm.weight", (HIDDEN,), "norm"
    yield mtp + "hnorm.weight", (HIDDEN,), "norm"
    yield mtp + "eh_proj.weight", (HIDDEN, 2 * HIDDEN), "plain"
    yield from layer_tensors(spec, spec.layers)
    yield mtp + "shared_head.norm.weight", (HIDDEN,), "norm"


def stored_tensors(spec, seed, dtype):
    """What the files hold: name -> (safetensors dtype, array), bf16 as uint16 and e4m3 as uint8."""
    stored = {}
    for name, shape, kind in model_tensors(spec):
        values = fill(seed, name, shape, kind)
        keep = dtype == "f32" or kind == "score" or (dtype == "fp8" and kind in ("key_norm", "key_bias"))
        if keep:
            stored[name] = ("F32", values)
        elif dtype == "fp8" and kind == "linear":
            codes, scales = quantise_matrix(values, spec.pow2)
            stored[name] = ("F8_E4M3", codes)
            stored[name + "_scale_inv"] = ("F32", scales)
        else:
            stored[name] = ("BF16", bf16_codes(values))
    return stored


def weights(spec, seed, dtype):
    """Float32 weights as a reader of the files sees them: rounded or dequantised."""
    stored = stored_tensors(spec, seed, dtype)
    values = {}
    for name, (kind, array) in stored.items():
        if name.endswith("_scale_inv"):
            continue
        if kind == "BF16":
            array = (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
        elif kind == "F8_E4M3":
            array = dequantise_matrix(array, stored[name + "_scale_inv"][1])
            assert not spec.pow2 or (bf16(array) == array).all(), "e4m3 times a power of two is a bf16"
        values[name] = array
    return values


# ---------------------------------------------------------------------------------------------------------------------
# safetensors

STORED = {"F32": np.float32, "I32": np.int32, "I64": np.int64, "BF16": np.uint16, "F8_E4M3": np.uint8, "U8": np.uint8}


def read_safetensors(path):
    with open(path, "rb") as file:
        data = file.read()
    length = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            array = np.frombuffer(body[begin:end], STORED[entry["dtype"]]).reshape(entry["shape"])
            tensors[name] = (entry["dtype"], array)
    return tensors


def write_safetensors(path, tensors, metadata):
    """tensors: name -> array, or (dtype, array) where numpy has no such type. Wide types first, for alignment."""
    names = {np.float32: "F32", np.int32: "I32", np.int64: "I64", np.uint8: "U8"}
    plain = {np.dtype(kind): name for kind, name in names.items()}
    typed = {n: t if isinstance(t, tuple) else (plain[t.dtype], t) for n, t in tensors.items()}
    order = sorted(typed, key=lambda n: -typed[n][1].itemsize)
    header, offset = {"__metadata__": metadata}, 0
    for name in order:
        kind, array = typed[name]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            file.write(np.ascontiguousarray(typed[name][1]).tobytes())
