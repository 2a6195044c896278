#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs transformers on the tiny models and stores what it found in tests/goldens. README.md says how.

    golden.py check  --make-tiny PATH     generator of tiny.py against make_tiny, bit for bit; rotations of transformers
    golden.py search [--tries N]          token seeds whose selections have no near-ties
    golden.py write  [--out DIR]          the goldens
"""

import argparse
import contextlib
import inspect
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers
from transformers import DynamicCache
from transformers.models.deepseek_v32 import modeling_deepseek_v32
from transformers.models.deepseek_v32.configuration_deepseek_v32 import DeepseekV32Config
from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa
from transformers.models.glm_moe_dsa.configuration_glm_moe_dsa import GlmMoeDsaConfig

import reference
import tiny

MODEL_SEED = 1
DECODE_FROM = 390
GAP_LEAST = 1e-5


class Case:
    """One golden file: weights, length, index_topk, cache format, and a token seed found by `search`."""

    def __init__(self, name, weights, length, topk, kv, seed, spec=tiny.DEEPSEEK):
        self.name, self.weights, self.length, self.topk, self.kv, self.seed = name, weights, length, topk, kv, seed
        self.spec = spec

    @property
    def dtype(self):
        """What transformers computes in. Codes are compared one by one, so that there only our own rounding counts."""
        return torch.float32 if self.kv == "f32" else torch.float64

    @property
    def thin(self):
        """Keeps no residual stream for every row."""
        return self.weights != "f32" or self.spec.family == "glm_moe_dsa"

    @property
    def full(self):
        """Keeps every row's list, and what is cached. A short prompt's lists have everything."""
        return self.weights == "f32" and not (self.thin and self.length <= self.topk)


# The caches are tried over two pages of 64 rows and a tail, with a top-k of 64: selection begins at row 64.
CASES = [
    Case("tiny_f32_100", "f32", 100, 128, "f32", 45),
    Case("tiny_f32_400", "f32", 400, 128, "f32", 35),
    Case("tiny_fp8w_400", "fp8", 400, 128, "f32", 220),
    Case("tiny_bf16w_200", "bf16", 200, 128, "f32", 1),
    Case("tiny_kv_bf16_136", "f32", 136, 64, "bf16", 22),
    Case("tiny_kv_fp8_136", "f32", 136, 64, "fp8", 93),
    Case("glm_f32_100", "f32", 100, 128, "f32", 1, tiny.GLM),
    Case("glm_f32_400", "f32", 400, 128, "f32", 173, tiny.GLM),
    Case("glm_fp8w_400", "fp8", 400, 128, "f32", 79, tiny.GLM_SERVED),
    Case("glm_full_bf16w_200", "bf16", 200, 128, "f32", 1, tiny.GLM_FULL),
]

torch.set_grad_enabled(False)
torch.set_num_threads(2)


def to_numpy(tensor):
    """As an array; float64 is rounded to float32, which is what the files hold."""
    array = tensor.detach().contiguous().numpy()
    return array.astype(np.float32) if array.dtype == np.float64 else array.copy()


# ---------------------------------------------------------------------------------------------------------------------
# Building the transformers model


def hf_class(spec, name):
    if spec.family == "glm_moe_dsa":
        return getattr(modeling_glm_moe_dsa, "GlmMoeDsa" + name)
    return getattr(modeling_deepseek_v32, "DeepseekV32" + name)


def config(spec, topk=128, layers=None):
    layers = layers or spec.layers
    rope = {"rope_type": "default", "rope_theta": spec.theta}
    if spec.yarn:
        rope |= {"rope_type": "yarn", "factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0,
                 "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 1.0}
    extra = {"max_position_embeddings": 163840}
    if spec.family == "glm_moe_dsa":
        kinds = ["full" if spec.has_indexer(n) else "shared" for n in range(layers)]
        extra = {"max_position_embeddings": 4096, "indexer_types": kinds}
    return (GlmMoeDsaConfig if spec.family == "glm_moe_dsa" else DeepseekV32Config)(
        vocab_size=tiny.VOCAB, hidden_size=tiny.HIDDEN, intermediate_size=tiny.DENSE_WIDTH,
        moe_intermediate_size=tiny.EXPERT_WIDTH, num_hidden_layers=layers, num_attention_heads=spec.heads,
        num_key_value_heads=spec.heads, n_shared_experts=1, n_routed_experts=tiny.EXPERTS,
        routed_scaling_factor=tiny.ROUTED_SCALE, kv_lora_rank=tiny.KV_RANK, q_lora_rank=tiny.Q_RANK,
        qk_rope_head_dim=tiny.ROPE, v_head_dim=spec.value, qk_nope_head_dim=spec.nope, n_group=spec.groups,
        topk_group=spec.groups_kept, num_experts_per_tok=tiny.EXPERTS_PER_TOKEN, first_k_dense_replace=1,
        norm_topk_prob=True, rms_norm_eps=spec.eps, bos_token_id=0, eos_token_id=1,
        pad_token_id=2, tie_word_embeddings=False, index_topk=topk, index_head_dim=tiny.INDEX_DIM,
        index_n_heads=tiny.INDEX_HEADS,
        rope_parameters=rope, attn_implementation="eager", experts_implementation="eager", **extra,
    )


def load(module, weights, prefix=""):
    """Copies hub-named weights into a module, fusing the experts as transformers keeps them. Every tensor once."""
    used = set()

    def take(name):
        used.add(prefix + name)
        return torch.from_numpy(weights[prefix + name])

    state = {}
    for name in module.state_dict():
        if name.endswith("experts.gate_up_proj"):
            stem = name.removesuffix("gate_up_proj")
            state[name] = torch.stack([torch.cat([take(f"{stem}{j}.{p}_proj.weight") for p in ("gate", "up")])
                                       for j in range(tiny.EXPERTS)])
        elif name.endswith("experts.down_proj"):
            stem = name.removesuffix("down_proj")
            state[name] = torch.stack([take(f"{stem}{j}.down_proj.weight") for j in range(tiny.EXPERTS)])
        else:
            state[name] = take(name)
    module.load_state_dict(state, strict=True)
    return used


class WideTorch:
    """torch with float64 under the name of float32."""

    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextlib.contextmanager
def precision(dtype):
    """With float64, the modules' own conversions to float32 keep float64. A float32 program stands to its result as
    any other float32 program does: what differs is then that program's rounding alone."""
    if dtype == torch.float32:
        yield
        return
    modules, narrow = (modeling_deepseek_v32, modeling_glm_moe_dsa), torch.Tensor.float
    try:
        for module in modules:
            module.torch = WideTorch()
        torch.Tensor.float = torch.Tensor.double
        yield
    finally:
        torch.Tensor.float = narrow
        for module in modules:
            module.torch = torch


class Model:
    """The main model and its MTP layer. The layer is one decoder layer module of a model one layer longer."""

    def __init__(self, spec, weights, topk=128, dtype=torch.float32):
        self.spec, self.topk, self.dtype = spec, topk, dtype
        self.main = hf_class(spec, "ForCausalLM")(config(spec, topk)).float().eval()
        used = load(self.main, weights)
        self.layer = hf_class(spec, "DecoderLayer")(config(spec, topk, spec.layers + 1), spec.layers).float().eval()
        prefix = f"model.layers.{spec.layers}."
        for layer in [*self.main.model.layers, self.layer]:
            for norm in (layer.self_attn.q_a_layernorm, layer.self_attn.kv_a_layernorm):
                norm.variance_epsilon = spec.latent_eps
        used |= load(self.layer, weights, prefix)
        extra = {name: torch.from_numpy(weights[prefix + name + ".weight"])
                 for name in ("enorm", "hnorm", "eh_proj", "shared_head.norm")}
        assert used | {prefix + name + ".weight" for name in extra} == set(weights), "every weight is used"
        self.eh_proj = extra["eh_proj"]
        self.norms = {}
        for name in ("enorm", "hnorm", "shared_head.norm"):
            self.norms[name] = hf_class(spec, "RMSNorm")(tiny.HIDDEN, eps=spec.eps)
            self.norms[name].weight.data = extra[name]
        for module in (self.main, self.layer, *self.norms.values()):
            module.to(dtype)
        self.eh_proj = self.eh_proj.to(dtype)

    @property
    def frequencies(self):
        """Rotations per position, float32. Those of transformers are some float32 steps off; a float64 model has the
        nearest ones."""
        if self.dtype == torch.float32:
            return to_numpy(self.main.model.rotary_emb.inv_freq)
        return reference.rope_frequencies(self.spec, np.float64).astype(np.float32)

    def rotations(self, x, position_ids):
        """cos and sin, of the angle as float32."""
        if self.dtype == torch.float32:
            return self.main.model.rotary_emb(x, position_ids=position_ids)
        assert self.main.model.rotary_emb.attention_scaling == 1.0
        angle = position_ids.to(torch.float32)[..., None] * torch.from_numpy(self.frequencies)
        angle = torch.cat((angle, angle), -1).to(self.dtype)
        return angle.cos(), angle.sin()


# ---------------------------------------------------------------------------------------------------------------------
# Taps: what a layer computes inside, and the quantisers


def interleave(key_rope):
    """transformers returns rotated keys as all first elements, then all second ones; ours stay in pairs."""
    out = torch.empty_like(key_rope)
    out[..., 0::2], out[..., 1::2] = key_rope[..., :32], key_rope[..., 32:]
    return out


def quantised(values, block):
    codes, scales = tiny.quantise_vectors(to_numpy(values), block)
    return torch.from_numpy(tiny.dequantise_vectors(codes, scales)).to(values.dtype), codes, scales


def as_bf16(values):
    return torch.from_numpy(tiny.bf16(to_numpy(values))).to(values.dtype)


class Tap:
    """Stands where a layer expects its cache: sees the KV rows, and rounds them as the cache format `kv` would."""

    def __init__(self, spec, kv):
        self.spec, self.kv = spec, kv
        self.found = {}

    def update(self, latent, key_rope, layer_idx, *args, **kwargs):
        pairs = interleave(key_rope[0, 0])
        if self.kv == "f32":
            self.found["latent"] = to_numpy(torch.cat([latent[0, 0], pairs], -1))
            return latent, key_rope
        self.found["rope_codes"] = ("BF16", tiny.bf16_codes(to_numpy(pairs)))
        key_rope = as_bf16(key_rope)
        if self.kv == "bf16":
            self.found["latent_codes"] = ("BF16", tiny.bf16_codes(to_numpy(latent[0, 0])))
            return as_bf16(latent), key_rope
        latent, codes, scales = quantised(latent, 128)
        self.found.update(latent_codes=codes[0, 0], latent_scales=scales[0, 0])
        return latent, key_rope

    def update_indexer(self, key, layer_idx, *args, **kwargs):
        if self.kv == "f32":
            own = torch.cat([interleave(key[..., :64]), key[..., 64:]], -1) if self.spec.pairs else key
            self.found["index_key"] = to_numpy(own[0])
            return key
        assert not self.spec.pairs, "a rounded cache of pairs is not among the cases"
        key, codes, scales = quantised(key, 128)
        self.found.update(index_codes=codes[0], index_scales=scales[0, :, 0])
        return key

    def scores(self, indexer, hidden, query_latent, positions, key):
        """Index scores, from the same operations as the module's forward, with its query quantised as its keys are."""
        rows = hidden.shape[1]
        query = indexer.wq_b(query_latent).view(1, rows, tiny.INDEX_HEADS, tiny.INDEX_DIM)
        if self.spec.pairs:
            rotate = modeling_glm_moe_dsa.apply_rotary_pos_emb_interleave
        else:
            rotate = modeling_deepseek_v32.apply_rotary_pos_emb
        turned, _ = rotate(query[..., :64], query[..., :64], *positions, unsqueeze_dim=2)
        query = torch.cat([turned, query[..., 64:]], -1)
        if self.kv != "f32":
            query, _, _ = quantised(query, 128)
        dots = torch.relu(torch.matmul(query, key.transpose(-1, -2).unsqueeze(1)) * tiny.INDEX_DIM**-0.5)
        weight = indexer.weights_proj(hidden) * tiny.INDEX_HEADS**-0.5
        return torch.matmul(weight.unsqueeze(-2), dots).squeeze(-2)


@contextlib.contextmanager
def tapped(layer, tap):
    """Replaces the indexer's forward by one that keeps scores and selection, and taps attention and router."""
    attention, indexer, spec = layer.self_attn, layer.self_attn.indexer, tap.spec
    original = indexer.forward if indexer else None

    def forward(hidden, query_latent, positions, mask, position_ids=None, cache=None):
        keys = []

        class Keep:
            def update_indexer(self, key, layer_idx, *args, **kwargs):
                keys.append(tap.update_indexer(key, layer_idx))
                return keys[0]

        chosen = original(hidden, query_latent, positions, mask, position_ids, cache=Keep())
        masked = tap.scores(indexer, hidden, query_latent, positions, keys[0]) + mask
        ours = masked.topk(chosen.shape[-1], dim=-1).indices.to(torch.int32)
        if tap.kv == "f32":
            assert torch.equal(ours.sort(-1).values, chosen.sort(-1).values), "same selection as the module's own"
        tap.found["scores"] = to_numpy(masked[0])
        tap.found["chosen"] = to_numpy(ours[0])
        return ours

    def before_output(module, arguments):
        tap.found["attention"] = to_numpy(arguments[0][0])

    def after_router(module, arguments, result):
        logits, weight, chosen = result
        order = chosen.sort(-1)
        tap.found["experts"] = to_numpy(order.values.to(torch.int32))
        tap.found["expert_weight"] = to_numpy(weight.gather(-1, order.indices))
        tap.found["router_gap"] = router_gap(spec, to_numpy(logits), to_numpy(module.e_score_correction_bias))

    hooks = [attention.o_proj.register_forward_pre_hook(before_output)]
    if hasattr(layer.mlp, "gate") and hasattr(layer.mlp, "experts"):
        hooks.append(layer.mlp.gate.register_forward_hook(after_router))
    if indexer:
        indexer.forward = forward
    try:
        yield
    finally:
        if indexer:
            indexer.forward = original
        for hook in hooks:
            hook.remove()


def router_gap(spec, logits, bias):
    """Least distance at the two borders: last kept to next group, fourth to fifth expert of the kept groups."""
    choice = 1 / (1 + np.exp(-logits.astype(np.float64))) + bias
    grouped = choice.reshape(-1, spec.groups, tiny.EXPERTS // spec.groups)
    groups = np.sort(grouped, -1)[..., -2:].sum(-1)
    ranked = np.sort(groups, -1)
    kept = groups >= ranked[:, -spec.groups_kept, None]
    left = np.sort(np.where(kept[..., None], grouped, -np.inf).reshape(choice.shape), -1)
    k = tiny.EXPERTS_PER_TOKEN
    gap = left[:, -k] - left[:, -k - 1]
    if spec.groups > spec.groups_kept:
        gap = np.minimum(gap, ranked[:, -spec.groups_kept] - ranked[:, -spec.groups_kept - 1])
    return gap.astype(np.float32)


def lists_and_gaps(found, topk):
    """Ascending lists padded with -1, and the border gap of a row over its largest |score| (inf if all are taken)."""
    scores, rows = found["scores"], len(found["scores"])
    lists, gaps = np.full((rows, topk), -1, np.int32), np.full(rows, np.inf, np.float32)
    for t in range(rows):
        visible = scores[t, : t + 1]
        mine = np.sort(found["chosen"][t][found["chosen"][t] <= t])
        assert len(mine) == min(topk, t + 1)
        lists[t, : len(mine)] = mine
        if t + 1 > topk:
            ranked = np.sort(visible)[::-1]
            gaps[t] = (ranked[topk - 1] - ranked[topk]) / np.abs(visible).max()
    return lists, gaps


def run_layer(model, layer, x, kv, below=None):
    """One decoder layer module over the rows x [L, hidden]; returns its output and the findings. `below` are those of
    the layer below, whose lists a layer without an indexer attends."""
    rows = x.shape[0]
    position_ids = torch.arange(rows)[None]
    positions = model.rotations(x[None], position_ids)
    mask = torch.full((rows, rows), torch.finfo(torch.float32).min, dtype=model.dtype).triu(1)[None, None]
    tap = Tap(model.spec, kv)
    named = {}
    if layer.self_attn.indexer is None:
        named["prev_topk_indices"] = torch.from_numpy(below["chosen"])[None]
        tap.found.update({name: below[name] for name in ("chosen", "topk", "topk_gap")})
    x = x.to(torch.float32).to(model.dtype)  # as it is stored
    with tapped(layer, tap):
        out = layer(x[None], attention_mask=mask, position_ids=position_ids, cache=tap, position_embeddings=positions,
                    **named)
    out = out[0] if isinstance(out, tuple) else out  # GLM's layers return their lists, too
    tap.found["input"], tap.found["hidden"] = to_numpy(x), to_numpy(out[0])
    if "topk" not in tap.found:
        tap.found["topk"], tap.found["topk_gap"] = lists_and_gaps(tap.found, model.topk)
    return out[0], tap.found


def run_main(model, tokens, kv="f32", floor=0.0):
    """The decoder over a prompt; None as soon as a layer has a closer call than `floor`."""
    x = model.main.model.embed_tokens(torch.from_numpy(tokens))
    layers, found = [], None
    for layer in model.main.model.layers:
        x, found = run_layer(model, layer, x, kv, found)
        layers.append(found)
        if min(found["topk_gap"].min(), found.get("router_gap", found["topk_gap"]).min()) < floor:
            return None
    final = model.main.model.norm(x)
    return {"layers": layers, "final": final, "logits": model.main.lm_head(final)}


def mtp_input(model, next_tokens, hidden):
    embedded = model.main.model.embed_tokens(torch.as_tensor(next_tokens))
    joined = torch.cat([model.norms["enorm"](embedded), model.norms["hnorm"](hidden)], -1)
    return torch.nn.functional.linear(joined, model.eh_proj)


def run_mtp(model, tokens, main, kv="f32", chain=2):
    """Rows 0..L-1 with true hidden states, then `chain` rows on the layer's own output. Row i: token i+1, position i.

    Every pass covers all rows again: a row sees rows 0..i only, so earlier rows come out the same.
    """
    rows = len(tokens)
    next_tokens = np.append(tokens[1:], to_numpy(main["logits"])[-1].argmax())
    u = mtp_input(model, next_tokens, main["final"])
    drafts = []
    for _ in range(chain + 1):
        x, found = run_layer(model, model.layer, u, kv)
        g = model.norms["shared_head.norm"](x)
        logits = model.main.lm_head(g)
        drafts.append(int(logits[-1].argmax()))
        u = torch.cat([u, mtp_input(model, [drafts[-1]], g[-1:])])
    found.update(g=to_numpy(g), logits=to_numpy(logits), tokens=next_tokens, drafts=np.array(drafts), rows=rows)
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Checks


def check_generator(make_tiny, spec, arguments):
    for dtype in ("f32", "bf16", "fp8"):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([make_tiny, folder, "--dtype", dtype, "--seed", str(MODEL_SEED), *arguments], check=True)
            found = {}
            for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
                found |= tiny.read_safetensors(path)
            wanted = tiny.stored_tensors(spec, MODEL_SEED, dtype)
            assert found.keys() == wanted.keys(), found.keys() ^ wanted.keys()
            for name, (kind, array) in wanted.items():
                assert found[name][0] == kind and found[name][1].shape == array.shape, name
                assert found[name][1].tobytes() == array.tobytes(), name
            if dtype == "f32":
                check_folder(spec, folder)
        print(f"generator {spec.family} {dtype}: {len(wanted)} tensors equal bit for bit")


def check_folder(spec, folder):
    """transformers loads the folder by itself, and to the same model."""
    theirs = hf_class(spec, "ForCausalLM").from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                           experts_implementation="eager")
    ours = Model(spec, tiny.weights(spec, MODEL_SEED, "f32"))
    for name, value in ours.main.state_dict().items():
        assert torch.equal(theirs.state_dict()[name], value), name
    tokens = torch.from_numpy(tiny.tokens(1, 200))[None]
    assert torch.equal(theirs(tokens).logits, ours.main(tokens).logits)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = "it's the nation found 10 of 12345 things\n\n  \u4f60\u597d w\u00f6rld \"x\\y\" <think>\U0001f600"
    assert len(tokenizer) == tiny.VOCAB and tokenizer.decode(tokenizer(text)["input_ids"]) == text
    print("folder: loaded by transformers, same weights and logits; tokenizer round trip")


def check_small_floats():
    """Conversions of tiny.py against torch; the three ways to write the scale rule are one."""
    values = tiny.fill(MODEL_SEED, "small floats", (1 << 16,), "embed") * np.exp2(np.arange(1 << 16) % 40 - 20)
    codes = np.arange(256, dtype=np.uint8)
    halves = tiny.e4m3_values(codes[:126])  # and the ties between neighbours
    values = np.concatenate([values.astype(np.float32), halves, (halves[1:] + halves[:-1]) / 2, [np.float32(448)]])
    values = np.clip(values, -448, 448).astype(np.float32)
    theirs = torch.from_numpy(values).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert (tiny.e4m3_codes(values) == theirs).all()
    theirs = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(tiny.e4m3_values(codes), theirs, equal_nan=True)
    assert (tiny.bf16(values) == torch.from_numpy(values).to(torch.bfloat16).float().numpy()).all()

    amax = (np.arange(1 << 23, dtype=np.uint32) | np.uint32(127 << 23)).view(np.float32)  # every fraction
    for scaled in (amax * np.float32(1 / 448), amax / np.float32(448)):
        raw = scaled.view(np.uint32)
        ceil_log2 = (raw >> np.uint32(23)).astype(np.int64) - 127 + ((raw & np.uint32(0x7FFFFF)) != 0)
        assert (np.exp2(ceil_log2) == tiny.pow2_scale(amax)).all()
    print("small floats: as torch; scale by multiplication, by division and by comparison agree for every fraction")


def check_rotation():
    """By known values and by the source: main attention rotates pairs (2i, 2i+1); the indexer the same pairs of its
    first 64 dimensions in GLM, and pairs (i, i+32) of them in DeepSeek."""
    hf, glm = modeling_deepseek_v32, modeling_glm_moe_dsa
    module = Model(tiny.DEEPSEEK, tiny.weights(tiny.DEEPSEEK, MODEL_SEED, "f32"))
    frequencies = to_numpy(module.main.model.rotary_emb.inv_freq)
    x = np.sin(0.1 * np.arange(64)).astype(np.float32)
    position = torch.tensor([[7]])
    cos, sin = module.main.model.rotary_emb(torch.zeros(1, 1, 1), position_ids=position)
    x4 = torch.from_numpy(x)[None, None, None]
    main, _ = hf.apply_rotary_pos_emb_interleave(x4, x4, cos, sin)
    half, _ = hf.apply_rotary_pos_emb(x4, x4, cos, sin)
    assert torch.equal(main, glm.apply_rotary_pos_emb_interleave(x4, x4, cos, sin)[0])
    main, half = to_numpy(interleave(main))[0, 0, 0], to_numpy(half)[0, 0, 0]
    known = {0: (-0.0655892, 0.0383510), 1: (0.0752646, -0.0844933), 2: (0.3555538, -0.3215390),
             24: (0.5515993, 0.6755736), 33: (-0.1598756, -0.1664671), 63: (0.0168120, 0.0168149)}
    for j, (a, b) in known.items():
        assert abs(main[j] - a) < 2e-6 and abs(half[j] - b) < 2e-6, (j, main[j], half[j])
    assert "apply_rotary_pos_emb_interleave(" in inspect.getsource(hf.DeepseekV32Attention.forward)
    assert "interleave(" not in inspect.getsource(hf.DeepseekV32Indexer.forward)
    for part in (glm.GlmMoeDsaAttention, glm.GlmMoeDsaIndexer):
        assert "apply_rotary_pos_emb_interleave(" in inspect.getsource(part.forward)
    check_cached_rotation(module, frequencies, 0.1352337789)
    print(f"transformers {transformers.__version__}: indexer half split on dimensions 0..63, main interleaved")
    for spec in (tiny.GLM, tiny.GLM_FULL):
        module = Model(spec, tiny.weights(spec, MODEL_SEED, "f32"))
        frequencies = to_numpy(module.main.model.rotary_emb.inv_freq)
        known = {1: 0.649382, 8: 0.0316228, 31: 1.53993e-6} if spec.theta == 1e6 else {1: 0.608525, 31: 2.05415e-7}
        for i, value in known.items():
            assert abs(frequencies[i] / value - 1) < 1e-5, (i, frequencies[i])
        check_cached_rotation(module, frequencies, 0.0625)
        print(f"transformers {transformers.__version__}: GLM's indexer and main interleaved, theta {spec.theta:.0f}")


def check_cached_rotation(module, frequencies, scale):
    """What the modules do, not what their source says: cached rows of position 7 against a rotation by hand."""
    rows = torch.from_numpy(tiny.fill(MODEL_SEED, "probe", (8, tiny.HIDDEN), "embed"))
    layer = module.main.model.layers[0]
    _, found = run_layer(module, layer, rows, "f32")
    normed, attention = layer.input_layernorm(rows), layer.self_attn
    raw = to_numpy(attention.kv_a_proj_with_mqa(normed))[:, tiny.KV_RANK:]
    want = reference.rope_interleaved(raw, np.arange(8), frequencies)
    assert np.abs(found["latent"][:, tiny.KV_RANK:] - want).max() < 1e-5
    raw = to_numpy(attention.indexer.k_norm(attention.indexer.wk(normed)))
    want = reference.rope_index(module.spec, raw, np.arange(8), frequencies)
    assert np.abs(found["index_key"] - want).max() < 1e-5
    assert (found["index_key"][:, 64:] == raw[:, 64:]).all() and (found["index_key"][7, :64] != raw[7, :64]).any()
    assert abs(attention.scaling - scale) < 1e-9 and module.main.model.rotary_emb.attention_scaling == 1.0


def cached(found):
    """KV rows as attention reads them back, [L, 576], and index keys, [L, 128]."""
    if "latent" in found:
        return found["latent"], found.get("index_key")
    rope = (found["rope_codes"][1].astype(np.uint32) << np.uint32(16)).view(np.float32)
    if isinstance(found["latent_codes"], tuple):
        latent = (found["latent_codes"][1].astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        latent = tiny.dequantise_vectors(found["latent_codes"], found["latent_scales"])
    index = tiny.dequantise_vectors(found["index_codes"], found["index_scales"][:, None])
    return np.concatenate([latent, rope], -1), index


def compare_layers(mine, theirs, label):
    """Prints the largest differences over layers, relative to the largest magnitude; returns flips and the worst."""
    worst, flips, moved, elements = {}, 0, 0, 0
    for a, b in zip(mine, theirs, strict=True):
        rows, topk = len(a["hidden"]), b["topk"].shape[1]
        latent, index = cached(b)
        owns = index is not None
        for ours, stored in [(a["latent"], latent[:rows])] + ([(a["index_key"], index[:rows])] if owns else []):
            if "latent" not in b:  # codes: count the rounding boundaries crossed
                moved, elements = moved + int((ours.astype(np.float32) != stored).sum()), elements + stored.size
        pairs = [("latent", a["latent"], latent)] + ([("index_key", a["index_key"], index)] if owns else [])
        pairs += [(n, a[n], b[n]) for n in ("attention", "hidden", "expert_weight") if n in a]
        below = np.tril(np.ones((rows, rows), bool))
        if owns:
            pairs.append(("scores", a["scores"][below], b["scores"][:rows, :rows][below]))
        for name, ours, stored in pairs:
            error = np.abs(ours - stored[: len(ours)]).max() / np.abs(stored).max()
            worst[name] = max(worst.get(name, 0.0), float(error))
        for t, chosen in enumerate(a["topk"]):
            flips += list(chosen) != [s for s in b["topk"][t, :topk] if s >= 0]
        if "experts" in a:
            flips += int((a["experts"] != b["experts"][:rows]).any(-1).sum())
    text = ", ".join(f"{name} {value:.1e}" for name, value in worst.items())
    text += f"; {moved} of {elements} codes differ" if elements else ""
    print(f"  {label}: {flips} selections differ; {text}")
    return flips, worst


def check_end_to_end(model, weights, case, tokens, run, mtp):
    """The layer loop equals the model's own forward; the numpy reference agrees, in float32 and float64."""
    whole = model.main(torch.from_numpy(tokens)[None], use_cache=False).logits[0]
    assert torch.equal(whole, run["logits"]), "layer by layer equals the whole forward"
    named = {"topk": case.topk, "frequencies": model.frequencies}
    for dtype in (np.float32, np.float64):
        mine = reference.forward(case.spec, weights, tokens, dtype=dtype, **named)
        chained = mtp["g"][len(tokens) - 1 : -1]  # rows behind the end read g of the row before
        mine_mtp = reference.mtp(case.spec, weights, np.append(mtp["tokens"], mtp["drafts"][:-1]),
                                 np.concatenate([mine["final"], chained]), dtype=dtype, **named)
        flips, _ = compare_layers(mine["layers"] + [mine_mtp], run["layers"] + [mtp], f"numpy {dtype.__name__}")
        logits = to_numpy(run["logits"])
        error = np.abs(mine["logits"] - logits).max() / np.abs(logits).max()
        drafts = np.abs(mine_mtp["logits"] - mtp["logits"]).max() / np.abs(mtp["logits"]).max()
        print(f"  numpy {dtype.__name__}: logits {error:.1e}, draft logits {drafts:.1e}")
        assert max(error, drafts) < 1e-4 and flips == 0


def check_layers(model, weights, case, run, mtp):
    """Each layer from its stored input and with its stored selection: a code on the other side of a rounding boundary
    is felt by every later layer, so that an end-to-end comparison of quantised caches says little."""
    frequencies, rows = model.frequencies, case.length
    for dtype in (np.float32, np.float64):
        cast, mine = {name: values.astype(dtype) for name, values in weights.items()}, []
        for n, found in enumerate(run["layers"] + [mtp]):
            lists = [row[row >= 0] for row in found["topk"][:rows]]
            _, inside = reference.decoder_layer(
                case.spec, cast, n, found["input"][:rows].astype(dtype), np.arange(rows), case.topk, case.kv,
                frequencies, lists=lists,
            )
            mine.append(inside)
        _, worst = compare_layers(mine, run["layers"] + [mtp], f"numpy {dtype.__name__}, layer by layer")
        assert worst["hidden"] < (1e-2 if dtype == np.float32 else 1e-6)


def check_decode(model, tokens, run):
    """Logits of the last rows, step by step. Prefill of 390 rows, then a row at a time through the cache."""
    cache = DynamicCache(config=model.main.config)
    ids = torch.from_numpy(tokens)[None]
    model.main(ids[:, :DECODE_FROM], cache=cache, use_cache=True)
    steps = [model.main(ids[:, t : t + 1], cache=cache, use_cache=True).logits[0, 0]
             for t in range(DECODE_FROM, len(tokens))]
    logits = torch.stack(steps)
    full = run["logits"][DECODE_FROM:]
    error = float((logits - full).abs().max() / full.abs().max())
    print(f"  decode {DECODE_FROM}..{len(tokens)}: {error:.1e} from the full run")
    assert error < 1e-4
    return to_numpy(logits)


def check_dense(spec, weights, tokens):
    """With top-k above the length every row attends all it sees: equal to attention without an indexer."""
    model = Model(spec, weights, topk=2048)
    whole = model.main(torch.from_numpy(tokens)[None], use_cache=False).logits[0]
    for n, layer in enumerate(model.main.model.layers):  # an indexer that selects everything: dense attention
        if not spec.has_indexer(n):
            continue
        layer.self_attn.indexer.forward = lambda h, *rest, **named: torch.arange(h.shape[1], dtype=torch.int32).expand(
            1, h.shape[1], h.shape[1])
    assert torch.equal(model.main(torch.from_numpy(tokens)[None], use_cache=False).logits[0], whole)
    return to_numpy(whole)


# ---------------------------------------------------------------------------------------------------------------------
# Search


def least_gaps(run, mtp):
    layers = run["layers"] + [mtp]
    topk = min(float(found["topk_gap"].min()) for found in layers)
    router = min(float(found["router_gap"].min()) for found in layers if "router_gap" in found)
    return topk, router


def search(names, first, tries):
    """For each case the token seed, of `tries` from `first` on, whose closest call is the least close."""
    for case in CASES:
        if names and case.name not in names:
            continue
        weights = tiny.weights(case.spec, MODEL_SEED, case.weights)
        model, best = Model(case.spec, weights, case.topk, case.dtype), (0.0, 0)
        for seed in range(first, first + tries):
            tokens = tiny.tokens(seed, case.length)
            with precision(case.dtype):
                run = run_main(model, tokens, case.kv, best[0])
                if run:
                    best = max(best, (min(least_gaps(run, run_mtp(model, tokens, run, case.kv))), seed))
        print(f"{case.name}: seed {best[1]}, least gap {best[0]:.1e}", flush=True)


# ---------------------------------------------------------------------------------------------------------------------
# Writing


def kept_rows(case):
    """Rows at which the wider tensors are stored."""
    if case.kv != "f32":
        return np.array([0, 1, 63, 64, 65, 95, 119, 127, 128, 135], np.int32)
    stride, last = (32, 12) if case.length > 128 else (8, 4)
    return np.union1d(np.arange(0, case.length, stride), np.arange(case.length - last, case.length)).astype(np.int32)


def layer_tensors(case, found, rows, is_mtp):
    """Tensors of one layer by their last name. Rows of the chain, past the end, are not among them."""
    owns = "scores" in found
    count, whole, thin = case.length, ["topk_gap"] if owns else [], ["hidden"]
    if "experts" in found:
        whole += ["experts", "expert_weight"]
    if case.kv == "f32":
        if owns:
            (whole if case.full and not is_mtp else thin).append("topk")
        thin += (["latent", "index_key"] if owns else ["latent"]) if case.full else []
        if not case.thin and not is_mtp:
            whole, thin = whole + ["hidden"], [name for name in thin if name != "hidden"]
    else:
        whole += ["input", "topk", "latent_codes", "rope_codes", "index_codes", "index_scales"]
        whole += ["latent_scales"] if case.kv == "fp8" else []
        thin += ["attention"]
    if is_mtp:
        whole, thin = whole + ["tokens"], thin + ["g", "logits"] + (["input"] if case.kv == "f32" else [])
    tensors = {}
    for name in whole + thin:
        kind, array = found[name] if isinstance(found[name], tuple) else (None, found[name])
        array = array[:count] if name in whole else array[rows]
        tensors[name] = (kind, array) if kind else array
    return tensors


def chain_tensors(case, found):
    """The rows behind the end, computed from drafts; `drafts` has one more: the draft of the last true row is first."""
    tensors = {name: found[name][case.length:] for name in ("input", "hidden", "g", "logits", "topk")}
    if case.kv == "f32":
        tensors |= {name: found[name][case.length:] for name in ("latent", "index_key")}
    return tensors | {"drafts": found["drafts"]}


def checksums(case):
    """Of every tensor as stored, in file order: sum over its bytes of byte[i] * (2 i + 1), modulo 2^64."""
    sums = []
    for _, array in tiny.stored_tensors(case.spec, MODEL_SEED, case.weights).values():
        data = np.frombuffer(array.tobytes(), np.uint8).astype(np.uint64)
        sums.append((data * (2 * np.arange(len(data), dtype=np.uint64) + np.uint64(1))).sum(dtype=np.uint64))
    return np.array(sums, np.uint64).view(np.int64)


def write_case(case, folder, metadata):
    weights, tokens = tiny.weights(case.spec, MODEL_SEED, case.weights), tiny.tokens(case.seed, case.length)
    model, rows = Model(case.spec, weights, case.topk, case.dtype), kept_rows(case)
    with precision(case.dtype):
        run = run_main(model, tokens, case.kv)
        mtp = run_mtp(model, tokens, run, case.kv)
    for row in [to_numpy(run["logits"])[-1], *mtp["logits"][case.length - 1 :]]:
        best = np.sort(row)[-2:]
        assert best[1] - best[0] > 1e-4 * np.abs(row).max(), "the next token and the drafts are clear"
    topk_gap, router_gap = least_gaps(run, mtp)
    print(f"{case.name}: least gap at the top-k border {topk_gap:.1e}, at the router's {router_gap:.1e}")
    assert min(topk_gap, router_gap) > GAP_LEAST, "a near-tie: search another token seed"
    if case.kv == "f32":
        check_end_to_end(model, weights, case, tokens, run, mtp)
    else:
        check_layers(model, weights, case, run, mtp)

    tensors = {"tokens": tokens, "rows": rows, "rope.inv_freq": model.frequencies}
    if case.length > 128 and case.kv == "f32":
        tensors["weights.checksum"] = checksums(case)
    tensors["embedding"] = run["layers"][0]["input"][rows]
    for n, found in enumerate(run["layers"]):
        tensors |= {f"layer.{n}.{name}": t for name, t in layer_tensors(case, found, rows, False).items()}
    tensors |= {f"mtp.{name}": t for name, t in layer_tensors(case, mtp, rows, True).items()}
    tensors |= {f"mtp.chain.{name}": t for name, t in chain_tensors(case, mtp).items()}
    tensors["final.hidden"] = to_numpy(run["final"])[rows]
    tensors["logits"] = to_numpy(run["logits"])[rows]
    if case.name.endswith("_f32_400"):
        tensors["decode.logits"] = check_decode(model, tokens, run)
        tensors["dense.logits"] = check_dense(case.spec, weights, tokens)[rows]
    path = folder / f"{case.name}.safetensors"
    tiny.write_safetensors(path, tensors, metadata | {
        "model_seed": str(MODEL_SEED), "token_seed": str(case.seed), "weights": case.weights,
        "index_topk": str(case.topk), "kv": case.kv} | ({} if case.spec == tiny.DEEPSEEK else {
        "indexers": case.spec.indexers, "latent_norm_eps": str(case.spec.latent_eps)}))
    print(f"  {path.name}: {path.stat().st_size} bytes, {len(tensors)} tensors", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check")
    check.add_argument("--make-tiny", required=True, help="the program built from make_tiny.c")
    find = commands.add_parser("search")
    find.add_argument("--first", type=int, default=1)
    find.add_argument("--tries", type=int, default=60)
    find.add_argument("names", nargs="*")
    write = commands.add_parser("write")
    write.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parents[2] / "tests/goldens")
    write.add_argument("names", nargs="*")
    arguments = parser.parse_args()

    if arguments.command == "search":
        search(arguments.names, arguments.first, arguments.tries)
        return
    check_rotation()
    if arguments.command == "check":
        check_small_floats()
        check_generator(arguments.make_tiny, tiny.DEEPSEEK, [])
        check_generator(arguments.make_tiny, tiny.GLM, ["--glm", tiny.GLM.indexers])
        check_generator(arguments.make_tiny, tiny.GLM_FULL, ["--glm", "--layers", str(tiny.GLM_FULL.layers)])
        return
    metadata = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    for case in CASES:
        if not arguments.names or case.name in arguments.names:
            write_case(case, arguments.out, metadata)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    main()
