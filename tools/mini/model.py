# SPDX-License-Identifier: Apache-2.0
"""The training-time model: deepseek_v32 (MLA, sparse-attention indexer, grouped mixture of experts, one MTP layer).

Weights of the nine layers (eight, and the MTP layer as the ninth) are stacked along a first axis, so that one compiled
function serves every layer and the optimiser handles one batch of matrices at a time.  `export.py` writes them apart
under the checkpoint's names.

The experts are few and small, so all of them are computed for every token as one wide MLP whose hidden columns are
multiplied by the routing weight (zero where an expert is not chosen).  This is the same function as routing tokens.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

CONFIG = {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "vocab_size": 4096,
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 128,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "index_n_heads": 8,
    "index_head_dim": 128,
    "index_topk": 128,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "intermediate_size": 1024,
    "moe_intermediate_size": 128,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 4096, "beta_fast": 32,
                     "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
    "max_position_embeddings": 16384,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "use_cache": True,
    "ep_size": 1,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                            "weight_block_size": [128, 128], "scale_fmt": "ue8m0"},
}
C = CONFIG
L, H, A, V = C["num_hidden_layers"], C["hidden_size"], C["num_attention_heads"], C["vocab_size"]
RQ, RK = C["q_lora_rank"], C["kv_lora_rank"]
DN, DR, DV = C["qk_nope_head_dim"], C["qk_rope_head_dim"], C["v_head_dim"]
HI, DI, TOPK = C["index_n_heads"], C["index_head_dim"], C["index_topk"]
E, EI = C["n_routed_experts"], C["moe_intermediate_size"]
N = L + 1                                   # decoder layers with the MTP layer
EPS = 1e-6


def yarn_frequencies():
    """(frequencies[32], factor on the softmax scale)."""
    s, base = C["rope_scaling"], C["rope_theta"]
    f = base ** (-torch.arange(0, DR, 2, dtype=torch.float64) / DR)
    orig = s["original_max_position_embeddings"]

    def corr(rot):
        return DR * math.log(orig / (rot * 2 * math.pi)) / (2 * math.log(base))
    low, high = max(math.floor(corr(s["beta_fast"])), 0), min(math.ceil(corr(s["beta_slow"])), DR - 1)
    ramp = ((torch.arange(DR // 2, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)
    m = 0.1 * s["mscale_all_dim"] * math.log(s["factor"]) + 1.0
    return (f * (1 - ramp) + f / s["factor"] * ramp).float(), m * m


SCALE = (DN + DR) ** -0.5 * yarn_frequencies()[1]
INDEX_SCALE = HI ** -0.5 * DI ** -0.5


def rope_tables(n, device):
    f = yarn_frequencies()[0].to(device)
    a = torch.arange(n, device=device, dtype=torch.float32)[:, None] * f[None, :]
    return a.cos(), a.sin()


def rms(x, g):
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * g


def rope_interleaved(x, cos, sin):
    """Pairs (2i, 2i+1); x [..., 64], tables broadcast to [..., 32]."""
    x = x.float()
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def rope_half(x, cos, sin):
    """Pairs (i, i + 32) of the first 64 dimensions; the other 64 pass."""
    x = x.float()
    a, b = x[..., :32], x[..., 32:64]
    return torch.cat((a * cos - b * sin, a * sin + b * cos, x[..., 64:]), -1)


# ------------------------------------------------------------------------------------------- quantisation, emulated


def pow2_scale(amax):
    """The smallest power of two s with amax / s <= 448."""
    return torch.exp2(torch.ceil(torch.log2(amax.clamp_min(1e-4) * (1.0 / 448.0))))


def quant_blocks(x, block=128):
    """x rounded to e4m3 with one power-of-two scale for every `block` consecutive values of the last axis (float32)."""
    s = x.shape
    x = x.float().unflatten(-1, (s[-1] // block, block))
    k = pow2_scale(x.abs().amax(-1, keepdim=True))
    q = (x / k).clamp(-448, 448).to(torch.float8_e4m3fn).float() * k
    return q.flatten(-2)


def fake_quant(x):
    """quant_blocks with a straight-through gradient."""
    x = x.float()
    return x + (quant_blocks(x) - x).detach()


def quant_weight(w):
    """(fp8 values as float32, scales) of w[..., out, in] in 128 x 128 blocks."""
    o, i = w.shape[-2:]
    po, pi = -o % 128, -i % 128
    x = F.pad(w.float(), (0, pi, 0, po))
    x = x.unflatten(-1, ((i + pi) // 128, 128)).unflatten(-3, ((o + po) // 128, 128))   # [.., O, 128, I, 128]
    k = pow2_scale(x.abs().amax((-1, -3), keepdim=True))
    q = (x / k).clamp(-448, 448).to(torch.float8_e4m3fn).float()
    deq = (q * k).flatten(-2).flatten(-3, -2)[..., :o, :i]
    return q.flatten(-2).flatten(-3, -2)[..., :o, :i], k.squeeze(-1).squeeze(-2), deq


def fake_quant_weight(w):
    return w + (quant_weight(w)[2] - w).detach()


# ------------------------------------------------------------------------------------------------------------ layers


def attention_inputs(x, w, cos, sin, latent_quant: bool):
    """x [B,S,H] -> q, k [B,A,S,192], v [B,A,S,128], normed x, query latent."""
    B, S, _ = x.shape
    xn = rms(x, w["in_norm"]).bfloat16()
    qr = rms(F.linear(xn, w["q_a"]), w["qa_norm"]).bfloat16()
    q = F.linear(qr, w["q_b"]).view(B, S, A, DN + DR)
    ckr = F.linear(xn, w["kv_a"])
    c = rms(ckr[..., :RK], w["kva_norm"])
    if latent_quant:
        c = fake_quant(c)
    c = c.bfloat16()
    kr = rope_interleaved(ckr[..., RK:], cos, sin).bfloat16()
    kv = F.linear(c, w["kv_b"]).view(B, S, A, DN + DV)
    qp = rope_interleaved(q[..., DN:], cos[:, None], sin[:, None]).bfloat16()
    q = torch.cat((q[..., :DN], qp), -1).transpose(1, 2)
    k = torch.cat((kv[..., :DN], kr[:, :, None].expand(B, S, A, DR)), -1).transpose(1, 2)
    return q, k, kv[..., DN:].transpose(1, 2), xn, qr


def dense_mlp(x, o, w):
    B, A_, S, D = o.shape
    x = x + F.linear(o.transpose(1, 2).reshape(B, S, A_ * D), w["o"]).float()
    y = rms(x, w["post_norm"]).bfloat16()
    h = F.silu(F.linear(y, w["gate"])) * F.linear(y, w["up"])
    return x + F.linear(h, w["down"]).float()


def route(y, router, bias):
    """y float [.., H] -> (dense routing weights [.., E], chosen mask)."""
    s = torch.sigmoid(F.linear(y.float(), router.float()))
    c = (s + bias).detach()
    g = C["n_group"]
    if g > C["topk_group"]:
        per = E // g
        cg = c.unflatten(-1, (g, per))
        top2 = cg.topk(2, -1)[0].sum(-1)
        keep = torch.zeros_like(top2).scatter(-1, top2.topk(C["topk_group"], -1)[1], 1.0)
        c = torch.where(keep[..., None].expand_as(cg).flatten(-2) > 0, c, float("-inf"))
    mask = torch.zeros_like(s).scatter(-1, c.topk(C["num_experts_per_tok"], -1)[1], 1.0)
    r = s * mask
    return r / (r.sum(-1, keepdim=True) + 1e-20) * C["routed_scaling_factor"], mask


def moe_mlp(x, o, w, bias):
    B, A_, S, D = o.shape
    x = x + F.linear(o.transpose(1, 2).reshape(B, S, A_ * D), w["o"]).float()
    yf = rms(x, w["post_norm"])
    y = yf.bfloat16()
    r, mask = route(y, w["router"], bias)
    r = torch.cat((r, torch.ones_like(r[..., :1])), -1)                 # the shared expert
    h = F.silu(F.linear(y, w["e_gate"].flatten(0, 1))) * F.linear(y, w["e_up"].flatten(0, 1))
    h = (h.unflatten(-1, (E + 1, EI)) * r[..., None]).flatten(-2).bfloat16()
    return x + F.linear(h, w["e_down"].transpose(0, 1).flatten(1)).float(), mask.sum((0, 1))


def index_inputs(xn, qr, w, cos, sin, quant: bool):
    """(index queries [B,S,HI,128], keys [B,S,128], head weights [B,S,HI] with the constant factors)."""
    B, S, _ = xn.shape
    q = rope_half(F.linear(qr, w["wq_b"]).view(B, S, HI, DI), cos[:, None], sin[:, None])
    k = F.linear(xn, w["wk"]).float()
    k = F.layer_norm(k, (DI,), w["kn_w"], w["kn_b"], EPS)
    k = rope_half(k, cos, sin)
    if quant:
        q, k = fake_quant(q), fake_quant(k)
    h = F.linear(xn.float(), w["wp"].float()) * INDEX_SCALE
    return q.bfloat16(), k.bfloat16(), h


def index_loss(q, k, xn, qr, w, cos, sin, rows, quant: bool):
    """KL(mean attention of the heads || softmax of the index score) at `rows` [B,R]; trains the indexer alone."""
    B, S, _ = xn.shape
    R = rows.shape[1]
    with torch.no_grad():
        qs = q.gather(2, rows[:, None, :, None].expand(B, A, R, DN + DR))
        a = torch.matmul(qs, k.transpose(-1, -2)).float() * SCALE
        seen = torch.arange(S, device=rows.device)[None, None, :] <= rows[:, :, None]
        p = torch.softmax(a.masked_fill(~seen[:, None], float("-inf")), -1).mean(1)
    xr = xn.gather(1, rows[..., None].expand(B, R, H))
    qrr = qr.gather(1, rows[..., None].expand(B, R, RQ))
    c, s = cos[rows], sin[rows]
    iq = rope_half(F.linear(qrr, w["wq_b"]).view(B, R, HI, DI), c[:, :, None], s[:, :, None])
    ik = F.layer_norm(F.linear(xn, w["wk"]).float(), (DI,), w["kn_w"], w["kn_b"], EPS)
    ik = rope_half(ik, cos, sin)
    if quant:
        iq, ik = fake_quant(iq), fake_quant(ik)
    h = F.linear(xr.float(), w["wp"].float()) * INDEX_SCALE
    d = torch.matmul(iq.bfloat16().flatten(1, 2), ik.bfloat16().transpose(-1, -2)).view(B, R, HI, S)
    sc = (F.relu(d).float() * h[..., None]).sum(2)
    logp = torch.log_softmax(sc.masked_fill(~seen, -1e9), -1)
    return (p * (torch.log(p + 1e-9) - logp)).sum(-1).mean()


class Mini(nn.Module):
    def __init__(self):
        super().__init__()

        def mat(*s, std=None):
            return nn.Parameter(torch.randn(*s) * (std if std is not None else s[-1] ** -0.5))

        def one(*s):
            return nn.Parameter(torch.ones(*s))
        self.embed, self.head = mat(V, H, std=1.0), mat(V, H, std=0.02)
        self.in_norm, self.post_norm = one(N, H), one(N, H)
        self.qa_norm, self.kva_norm = one(N, RQ), one(N, RK)
        self.q_a, self.q_b = mat(N, RQ, H), mat(N, A * (DN + DR), RQ)
        self.kv_a, self.kv_b = mat(N, RK + DR, H), mat(N, A * (DN + DV), RK)
        self.o = mat(N, H, A * DV, std=0.2 * (A * DV) ** -0.5)
        self.wq_b, self.wk, self.wp = mat(N, HI * DI, RQ), mat(N, DI, H), mat(N, HI, H)
        self.kn_w, self.kn_b = one(N, DI), nn.Parameter(torch.zeros(N, DI))
        I = C["intermediate_size"]
        self.gate, self.up, self.down = mat(1, I, H), mat(1, I, H), mat(1, H, I, std=0.2 * I ** -0.5)
        M = N - 1
        self.router = mat(M, E, H)
        self.e_gate, self.e_up = mat(M, E + 1, EI, H), mat(M, E + 1, EI, H)
        self.e_down = mat(M, E + 1, H, EI, std=0.2 * EI ** -0.5)
        self.final_norm, self.enorm, self.hnorm, self.sh_norm = one(H), one(H), one(H), one(H)
        self.eh = mat(1, H, 2 * H)
        self.register_buffer("bias", torch.zeros(M, E))

    # which weights are stored as fp8
    FP8 = ("q_a", "q_b", "kv_a", "kv_b", "o", "wq_b", "wk", "gate", "up", "down", "e_gate", "e_up", "e_down")
    MUON = FP8[:5] + ("gate", "up", "down", "e_gate", "e_up", "e_down", "eh")
    INDEXER = ("wq_b", "wk", "wp", "kn_w", "kn_b")
    PER_LAYER = ("in_norm", "post_norm", "qa_norm", "kva_norm", "q_a", "q_b", "kv_a", "kv_b", "o",
                 "wq_b", "wk", "wp", "kn_w", "kn_b")
    PER_MOE = ("router", "e_gate", "e_up", "e_down")

    def layer_weights(self, quant, compute=torch.bfloat16):
        """A dict of weights for each layer, fp8-rounded (straight through) if `quant`, matrices in bf16."""
        stacks = {}
        for n in self.PER_LAYER + self.PER_MOE + ("gate", "up", "down"):
            p = getattr(self, n)
            if n in self.FP8:
                p = (fake_quant_weight_c(p) if quant else p).to(compute)
            elif quant:
                p = p + (p.to(torch.bfloat16).float() - p).detach()
            stacks[n] = p.unbind(0)
        out = []
        for l in range(N):
            w = {n: stacks[n][l] for n in self.PER_LAYER}
            if l == 0:
                w.update({n: stacks[n][0] for n in ("gate", "up", "down")})
            else:
                w.update({n: stacks[n][l - 1] for n in self.PER_MOE})
            out.append(w)
        return out


fake_quant_weight_c = fake_quant_weight      # train.py replaces it by a compiled version
