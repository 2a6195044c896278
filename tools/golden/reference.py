# SPDX-License-Identifier: Apache-2.0
"""The tiny models' forward pass written out in numpy, from the arithmetic alone and without transformers.

It cross-checks transformers and is meant to be read next to a C implementation. It differs from transformers in form:
attention is absorbed (scores against the latent, 576 wide), rotated keys keep the interleaved order, and only selected
rows are read. `dtype` float64 shows how much of a difference between two float32 programs is rounding. `spec` is the
family's.

Rows are tokens throughout; L rows, A heads.
"""

import numpy as np

import tiny
from tiny import EXPERTS, EXPERTS_PER_TOKEN, INDEX_DIM, INDEX_HEADS, KV_RANK, ROPE, ROUTED_SCALE

INDEX_EPS = 1e-6  # LayerNorm of the index key


def rope_frequencies(spec, dtype=np.float32):
    """32 rotations per position. YaRN: theta 10000, factor 40, 4096 original positions, betas 32 and 1."""
    i = np.arange(32, dtype=dtype)
    base = (1.0 / dtype(spec.theta) ** (2 * i / dtype(64))).astype(dtype)
    if not spec.yarn:
        return base
    low, high = 10, 23  # floor(10.47), ceil(22.51)
    stretched = np.clip((i - low) / dtype(high - low), 0, 1)
    return base / dtype(40) * stretched + base * (1 - stretched)


def softmax_scale(spec):
    m = 0.1 * np.log(40.0) + 1.0 if spec.yarn else 1.0
    return (spec.nope + ROPE) ** -0.5 * m * m


def rms_norm(x, gain, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + x.dtype.type(eps)) * gain


def layer_norm(x, gain, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + x.dtype.type(INDEX_EPS)) * gain + bias


def rotate(a, b, positions, dtype, frequencies):
    angle = (positions.astype(np.float32)[:, None] * frequencies).astype(np.float32)
    cos, sin = np.cos(angle.astype(dtype)), np.sin(angle.astype(dtype))
    if a.ndim == 3:  # heads
        cos, sin = cos[:, None], sin[:, None]
    return a * cos - b * sin, a * sin + b * cos


def rope_interleaved(x, positions, frequencies):
    """Main attention, and GLM's indexer: pairs (2i, 2i+1)."""
    out = np.empty_like(x)
    out[..., 0::2], out[..., 1::2] = rotate(x[..., 0::2], x[..., 1::2], positions, x.dtype, frequencies)
    return out


def rope_half(x, positions, frequencies):
    """DeepSeek's indexer: pairs (i, i + 32) of the first 64 dimensions."""
    out = x.copy()
    out[..., :32], out[..., 32:64] = rotate(x[..., :32], x[..., 32:64], positions, x.dtype, frequencies)
    return out


def rope_index(spec, x, positions, frequencies):
    """The first 64 of the indexer's 128 dimensions."""
    if not spec.pairs:
        return rope_half(x, positions, frequencies)
    return np.concatenate([rope_interleaved(x[..., :64], positions, frequencies), x[..., 64:]], -1)


def silu(x):
    return x / (1 + np.exp(-x))


def mlp(w, prefix, x):
    gate, up = (x @ w[prefix + f"{n}_proj.weight"].T for n in ("gate", "up"))
    return (silu(gate) * up) @ w[prefix + "down_proj.weight"].T


def experts(spec, w, prefix, x, found):
    score = 1 / (1 + np.exp(-(x @ w[prefix + "gate.weight"].T)))
    choice = score + w[prefix + "gate.e_score_correction_bias"]
    groups = np.sort(choice.reshape(-1, spec.groups, EXPERTS // spec.groups), -1)[..., -2:].sum(-1)
    kept = np.argsort(-groups, -1, kind="stable")[:, : spec.groups_kept]
    mask = np.zeros(groups.shape, bool)
    np.put_along_axis(mask, kept, True, -1)
    masked = np.where(np.repeat(mask, EXPERTS // spec.groups, -1), choice, -np.inf)
    chosen = np.sort(np.argsort(-masked, -1, kind="stable")[:, :EXPERTS_PER_TOKEN], -1)
    weight = np.take_along_axis(score, chosen, -1)
    weight = weight / (weight.sum(-1, keepdims=True) + x.dtype.type(1e-20)) * x.dtype.type(ROUTED_SCALE)
    out = np.zeros_like(x)
    for j in range(EXPERTS):
        rows, slot = np.nonzero(chosen == j)
        if len(rows):
            out[rows] += weight[rows, slot, None] * mlp(w, f"{prefix}experts.{j}.", x[rows])
    found.update(experts=chosen, expert_weight=weight)
    return out + mlp(w, prefix + "shared_experts.", x)


def select(scores, topk):
    """Rows of ascending positions, the `topk` best among those at most the row; ties to the lower position."""
    lists = []
    for t, row in enumerate(scores):
        best = np.argsort(-row[: t + 1], kind="stable")[:topk]
        lists.append(np.sort(best))
    return lists


def e4m3_round(x, block):
    """Codes times scales, computed from the float32 value of x."""
    return tiny.dequantise_vectors(*tiny.quantise_vectors(x.astype(np.float32), block)).astype(x.dtype)


def cache_round(latent, key_rope, kv):
    """What attention reads back from a cache of format f32, bf16 or fp8."""
    if kv == "f32":
        return latent, key_rope
    rounded = tiny.bf16(key_rope.astype(np.float32)).astype(latent.dtype)
    if kv == "bf16":
        return tiny.bf16(latent.astype(np.float32)).astype(latent.dtype), rounded
    return e4m3_round(latent, 128), rounded


def choose(spec, w, prefix, x, query_latent, positions, topk, kv, found, frequencies):
    """The indexer: its keys, scores, and the lists of a layer that owns one."""
    x_dtype, rows, index = x.dtype.type, len(x), prefix + "indexer."
    index_key = layer_norm(x @ w[index + "wk.weight"].T, w[index + "k_norm.weight"], w[index + "k_norm.bias"])
    index_key = rope_index(spec, index_key, positions, frequencies)
    index_query = (query_latent @ w[index + "wq_b.weight"].T).reshape(rows, INDEX_HEADS, INDEX_DIM)
    index_query = rope_index(spec, index_query, positions, frequencies)
    if kv != "f32":  # both cache formats below f32 quantise key and query of the index by one rule
        index_key, index_query = e4m3_round(index_key, INDEX_DIM), e4m3_round(index_query, INDEX_DIM)
    found["index_key"] = index_key
    index_weight = x @ w[index + "weights_proj.weight"].T * x_dtype(INDEX_HEADS**-0.5 * INDEX_DIM**-0.5)
    found["scores"] = np.einsum("th,ths->ts", index_weight, np.maximum(index_query @ index_key.T, 0))
    found["topk"] = select(found["scores"], topk)


def attention(spec, w, prefix, x, positions, topk, kv, found, frequencies, below, lists=None):
    """`below` are the lists of the nearest layer below that owns an indexer; `lists` forces what is attended."""
    x_dtype, rows, eps, nope = x.dtype.type, len(x), spec.latent_eps, spec.nope
    query_latent = rms_norm(x @ w[prefix + "q_a_proj.weight"].T, w[prefix + "q_a_layernorm.weight"], eps)
    row = x @ w[prefix + "kv_a_proj_with_mqa.weight"].T
    latent = rms_norm(row[:, :KV_RANK], w[prefix + "kv_a_layernorm.weight"], eps)
    key_rope = rope_interleaved(row[:, KV_RANK:], positions, frequencies)
    found["latent"] = stored = np.concatenate(cache_round(latent, key_rope, kv), -1)
    if prefix + "indexer.wk.weight" in w:
        choose(spec, w, prefix, x, query_latent, positions, topk, kv, found, frequencies)
    else:
        found["topk"] = below
    lists = found["topk"] if lists is None else lists

    query = (query_latent @ w[prefix + "q_b_proj.weight"].T).reshape(rows, -1, nope + ROPE)
    kv_b = w[prefix + "kv_b_proj.weight"].reshape(query.shape[1], nope + spec.value, KV_RANK)
    key_b, value_b = kv_b[:, :nope], kv_b[:, nope:]
    absorbed = np.einsum("tad,adc->tac", query[..., :nope], key_b, optimize=True)
    query = np.concatenate([absorbed, rope_interleaved(query[..., nope:], positions, frequencies)], -1)
    out = np.empty((rows, query.shape[1], spec.value), x.dtype)
    for t in range(rows):
        chosen = stored[lists[t]]
        score = query[t] @ chosen.T * x_dtype(softmax_scale(spec))
        p = np.exp(score - score.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        out[t] = np.einsum("ac,avc->av", p @ chosen[:, :KV_RANK], value_b)
    found["attention"] = out = out.reshape(rows, -1)
    return out @ w[prefix + "o_proj.weight"].T


def decoder_layer(spec, w, layer, x, positions, topk=128, kv="f32", frequencies=None, below=None, lists=None):
    """One layer over all rows; returns its output and what was found inside. `below` and `lists` as in attention."""
    found, prefix = {}, f"model.layers.{layer}."
    frequencies = rope_frequencies(spec) if frequencies is None else frequencies
    normed = rms_norm(x, w[prefix + "input_layernorm.weight"], spec.eps)
    x = x + attention(spec, w, prefix + "self_attn.", normed, positions, topk, kv, found, frequencies, below, lists)
    normed = rms_norm(x, w[prefix + "post_attention_layernorm.weight"], spec.eps)
    if prefix + "mlp.gate.weight" in w:
        x = x + experts(spec, w, prefix + "mlp.", normed, found)
    else:
        x = x + mlp(w, prefix + "mlp.", normed)
    found["hidden"] = x
    return x, found


def forward(spec, w, tokens, topk=128, kv="f32", dtype=np.float32, frequencies=None):
    """The whole model: per-layer findings, final hidden state, logits."""
    w = {name: values.astype(dtype) for name, values in w.items()}
    x = w["model.embed_tokens.weight"][tokens]
    positions, found, below = np.arange(len(tokens)), [], None
    for layer in range(spec.layers):
        x, inside = decoder_layer(spec, w, layer, x, positions, topk, kv, frequencies, below)
        below = inside["topk"]
        found.append(inside)
    final = rms_norm(x, w["model.norm.weight"], spec.eps)
    return {"layers": found, "final": final, "logits": final @ w["lm_head.weight"].T}


def mtp(spec, w, next_tokens, hidden, topk=128, kv="f32", dtype=np.float32, frequencies=None):
    """The MTP layer over rows (h_i, token i+1), i = 0.. : row i has RoPE position i and sees rows 0..i."""
    w = {name: values.astype(dtype) for name, values in w.items()}
    prefix = f"model.layers.{spec.layers}."
    embedded = rms_norm(w["model.embed_tokens.weight"][next_tokens], w[prefix + "enorm.weight"], spec.eps)
    hidden = rms_norm(hidden.astype(dtype), w[prefix + "hnorm.weight"], spec.eps)
    u = np.concatenate([embedded, hidden], -1) @ w[prefix + "eh_proj.weight"].T
    x, found = decoder_layer(spec, w, spec.layers, u, np.arange(len(u)), topk, kv, frequencies)
    g = rms_norm(x, w[prefix + "shared_head.norm.weight"], spec.eps)
    found.update(input=u, g=g, logits=g @ w["lm_head.weight"].T)
    return found
