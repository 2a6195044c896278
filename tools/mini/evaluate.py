# SPDX-License-Identifier: Apache-2.0
"""Measures an exported checkpoint under the arithmetic of inference, and writes reference values for an engine.

    python evaluate.py --model DIR [--kv bf16|fp8] [--out figures.json] [--cases N] [--reference DIR/reference.json]

It reads the shards, not the training state: fp8 weights dequantised to bf16; inputs of matrix products rounded to bf16,
float32 accumulation and residual; latents stored as bf16 (or fp8 blocks of 128); index queries and keys in fp8 with
power-of-two scales; exact top-k of the index with ties to the lower position; attention in the absorbed form over the
chosen rows, probabilities rounded to bf16; h rounded to bf16 after the final norm.
"""

import argparse
import glob
import json
import os
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from data import join, load_tokenizer
from model import (A, DI, DN, DR, DV, E, EPS, HI, INDEX_SCALE, L, N, RK, SCALE, TOPK, quant_blocks, rms, rope_half,
                   rope_interleaved, rope_tables, route)

PAGE = 64


def bf(x):
    return x.to(torch.bfloat16).float()


class Engine:
    def __init__(self, path, dev, kv="bf16", max_len=16384):
        t = {}
        for f in sorted(glob.glob(os.path.join(path, "model-*.safetensors"))):
            t.update(load_file(f))
        self.w, self.dev, self.kv = {}, dev, kv
        for n, x in t.items():
            if n.endswith("_scale_inv"):
                continue
            x = x.float()
            if n + "_scale_inv" in t:
                s = t[n + "_scale_inv"].repeat_interleave(128, 0).repeat_interleave(128, 1)
                x = bf(x * s[:x.shape[0], :x.shape[1]])
            self.w[n] = x.to(dev)
        self.cos, self.sin = rope_tables(max_len, dev)

    def new_cache(self):
        """Per layer: latents [s,512], rope keys [s,64], index keys [s,128]."""
        e = lambda d: torch.empty(0, d, device=self.dev)
        return [[e(RK), e(DR), e(DI)] for _ in range(N)]

    def lin(self, x, name):
        return F.linear(bf(x), self.w[name + ".weight"])

    def layer(self, l, x, cache, pos):
        """x [T,H] at positions pos..pos+T-1; appends to the cache of layer l."""
        w, p, T = self.w, f"model.layers.{l}.", x.shape[0]
        cos, sin = self.cos[pos:pos + T], self.sin[pos:pos + T]
        a = p + "self_attn."
        xn = bf(rms(x, w[p + "input_layernorm.weight"]))
        qr = bf(rms(self.lin(xn, a + "q_a_proj"), w[a + "q_a_layernorm.weight"]))
        q = self.lin(qr, a + "q_b_proj").view(T, A, DN + DR)
        ckr = self.lin(xn, a + "kv_a_proj_with_mqa")
        c = rms(ckr[:, :RK], w[a + "kv_a_layernorm.weight"])
        c = bf(quant_blocks(c) if self.kv == "fp8" else c)
        kr = bf(rope_interleaved(ckr[:, RK:], cos, sin))
        ik = F.layer_norm(self.lin(xn, a + "indexer.wk"), (DI,), w[a + "indexer.k_norm.weight"],
                          w[a + "indexer.k_norm.bias"], EPS)
        ik = quant_blocks(rope_half(ik, cos, sin))
        for i, new in enumerate((c, kr, ik)):
            cache[l][i] = torch.cat((cache[l][i], new))
        c, kr, ik = cache[l]
        S = c.shape[0]
        first = S - T                                            # cache row of x[0]
        iq = quant_blocks(rope_half(self.lin(qr, a + "indexer.wq_b").view(T, HI, DI), cos[:, None], sin[:, None]))
        ih = F.linear(xn, w[a + "indexer.weights_proj.weight"]) * INDEX_SCALE
        seen = torch.arange(S, device=self.dev)[None] <= torch.arange(first, S, device=self.dev)[:, None]
        keep = seen
        if S > TOPK:
            sc = torch.zeros(T, S, device=self.dev)
            for h in range(HI):
                sc += ih[:, h:h + 1] * torch.relu(iq[:, h] @ ik.T)
            sc = sc.masked_fill(~seen, float("-inf"))
            kth = sc.topk(TOPK, -1)[0][:, -1:]
            above = sc > kth
            equal = (sc == kth) & seen
            keep = above | (equal & (equal.cumsum(-1) <= TOPK - above.sum(-1, keepdim=True)))
        wkv = w[a + "kv_b_proj.weight"].view(A, DN + DV, RK)
        qt = bf(torch.einsum("thd,hdr->thr", bf(q[..., :DN]), wkv[:, :DN]))
        qp = bf(rope_interleaved(q[..., DN:], cos[:, None], sin[:, None]))
        o = torch.empty(T, A, DV, device=self.dev)
        for h in range(A):
            s = (qt[:, h] @ c.T + qp[:, h] @ kr.T) * SCALE
            s = s.masked_fill(~keep, float("-inf"))
            m = s.amax(-1, keepdim=True)
            pr = torch.exp(s - m)
            z = pr.sum(-1, keepdim=True)
            o[:, h] = bf(bf(pr) @ c / z) @ wkv[h, DN:].T
        x = x + self.lin(o.flatten(1), a + "o_proj")
        y = bf(rms(x, w[p + "post_attention_layernorm.weight"]))
        m = p + "mlp."

        def mlp(pre):
            return self.lin(F.silu(self.lin(y, pre + "gate_proj")) * self.lin(y, pre + "up_proj"), pre + "down_proj")
        if m + "gate_proj.weight" in w:
            return x + mlp(m)
        r, _ = route(y, w[m + "gate.weight"], w[m + "gate.e_score_correction_bias"])
        out = torch.zeros_like(x)
        for j in range(E):
            out += r[:, j:j + 1] * mlp(f"{m}experts.{j}.")
        return x + (out + mlp(m + "shared_experts."))

    @torch.no_grad()
    def hidden(self, tokens, cache, pos):
        x = F.embedding(tokens, self.w["model.embed_tokens.weight"])
        for l in range(L):
            x = self.layer(l, x, cache, pos)
        return bf(rms(x, self.w["model.norm.weight"]))

    def logits(self, h):
        return F.linear(h, self.w["lm_head.weight"])

    @torch.no_grad()
    def draft(self, h, next_tokens, cache, pos):
        """Logits for position i+2 from h_i and token i+1; row i has position i."""
        p = f"model.layers.{L}."
        e = F.embedding(next_tokens, self.w["model.embed_tokens.weight"])
        u = F.linear(torch.cat((bf(rms(e, self.w[p + "enorm.weight"])), bf(rms(h, self.w[p + "hnorm.weight"]))), -1),
                     self.w[p + "eh_proj.weight"])
        x = self.layer(L, u, cache, pos)
        return self.logits(bf(rms(x, self.w[p + "shared_head.norm.weight"])))


def generate(e, ids, n, temperature=0.0, top_p=0.95, cache=None, pos=0):
    """n tokens after `ids`; greedy at temperature 0.  `cache` may hold the first `pos` positions already."""
    cache = cache or e.new_cache()
    h = e.hidden(torch.tensor(ids, device=e.dev), cache, pos)[-1:]
    out = []
    while len(out) < n:
        z = e.logits(h)[0]
        if temperature > 0:
            p, order = torch.softmax(z / temperature, -1).sort(descending=True)
            p = torch.where(p.cumsum(-1) - p < top_p, p, 0.0)
            out.append(int(order[torch.multinomial(p, 1)]))
        else:
            out.append(int(z.argmax()))
        if len(out) < n:
            h = e.hidden(torch.tensor(out[-1:], device=e.dev), cache, pos + len(ids) + len(out) - 1)
    return out


# ----------------------------------------------------------------------------------------------------------- figures


def case_tokens(case, tok, filler):
    enc = lambda s: tok.encode(s, add_special_tokens=False).ids
    return enc(join(case["prompt"], filler)), enc(" " + case["answer"])


def answered(e, tok, tail, answer, cache, pos):
    """Greedy decoding of `tail` + ... gives the answer, then a line end.  The answer is fed in one piece: greedy
    decoding yields it exactly when every position's argmax is the next token."""
    h = e.hidden(torch.tensor(tail + answer, device=e.dev), cache, pos)
    best = e.logits(h[len(tail) - 1:]).argmax(-1).tolist()
    return best[:-1] == answer and tok.decode(best[-1:], skip_special_tokens=False).startswith("\n")


def rotate_index_keys(cache, pages):
    """Control 1: each full page keeps its latents but gets the index keys of the page `pages` before (cyclic)."""
    for layer in cache:
        n = layer[2].shape[0] // PAGE * PAGE
        layer[2] = torch.cat((torch.roll(layer[2][:n], pages * PAGE, 0), layer[2][n:]))


def recall(e, tok, cases, filler, controls):
    tot, res, other = {}, {}, None
    for case in cases:
        ids, ans = case_tokens(case, tok, filler)
        group = case["id"].split("-")[0]
        cache = e.new_cache()
        cut = (len(ids) - 40) // PAGE * PAGE if controls else 0   # whole pages before the question
        if not controls:
            ok = answered(e, tok, ids, ans, cache, 0)
            r = res.setdefault(group, [0, 0])
            r[0], r[1] = r[0] + ok, r[1] + 1
            tot[case["id"]] = bool(ok)
            continue
        e.hidden(torch.tensor(ids[:cut], device=e.dev), cache, 0)
        copy = lambda c: [[t.clone() for t in layer] for layer in c]
        c1 = copy(cache)
        rotate_index_keys(c1, 7)
        r = res.setdefault("latents with another page's index keys", [0, 0])
        r[0], r[1] = r[0] + answered(e, tok, ids[cut:], ans, c1, cut), r[1] + 1
        if other is not None:
            n = min(cut, other[0][0].shape[0])
            c2 = [[torch.cat((o[:n], t[n:])) for o, t in zip(lo, lt)] for lo, lt in zip(other, cache)]
            r = res.setdefault("pages of another prompt", [0, 0])
            r[0], r[1] = r[0] + answered(e, tok, ids[cut:], ans, c2, cut), r[1] + 1
        other = cache
    return res, tot


def heldout(e, tok, text, window=2048, limit=None):
    """Mean loss in nats a token over consecutive windows (no BOS; the first token of a window is not predicted), and
    the share of positions where the draft agrees with the main model."""
    ids = tok.encode(text, add_special_tokens=False).ids
    loss, n, agree, m, mloss = 0.0, 0, 0, 0, 0.0
    for a in list(range(0, len(ids) - 2, window))[:limit]:
        t = torch.tensor(ids[a:a + window], device=e.dev)
        if len(t) < 64:
            continue
        cache = e.new_cache()
        h = e.hidden(t, cache, 0)
        z = e.logits(h)
        loss += F.cross_entropy(z[:-1], t[1:], reduction="sum").item()
        n += len(t) - 1
        d = e.draft(h[:-1], t[1:], cache, 0)
        agree += (d.argmax(-1)[:-1] == z.argmax(-1)[1:-1]).sum().item()
        mloss += F.cross_entropy(d[:-1], t[2:], reduction="sum").item()
        m += len(t) - 2
    return {"loss": loss / n, "tokens": n, "draft_agreement": agree / m, "draft_loss": mloss / m}


def demo(e, tok, here):
    """The questions of demo.jsonl over demo.txt, which is read once."""
    enc = lambda s: tok.encode(s, add_special_tokens=False).ids
    text = open(os.path.join(here, "demo.txt"), encoding="ascii").read()
    cut = text.rindex("\n\n") + 2                               # the last paragraph goes with the question
    cache, base = e.new_cache(), enc(text[:cut])
    e.hidden(torch.tensor(base, device=e.dev), cache, 0)
    for line in open(os.path.join(here, "demo.jsonl")):
        c = json.loads(line)
        mine = [[t.clone() for t in layer] for layer in cache]
        out = generate(e, enc(text[cut:] + c["suffix"]), 12, cache=mine, pos=len(base))
        out = tok.decode(out).split("\n")[0].strip()
        verdict = "(right)" if out == c["answer"] else f"(wrong: {c['answer']})"
        print(c["suffix"].strip().replace("\n", " "), out, verdict, flush=True)


def reference(e, tok, prompts, path):
    """Token ids, argmax and the five largest logits of the last 64 positions, draft argmax, 32 greedy tokens."""
    out = []
    for name, text in prompts:
        ids = tok.encode(text, add_special_tokens=False).ids
        cache = e.new_cache()
        t = torch.tensor(ids, device=e.dev)
        h = e.hidden(t, cache, 0)
        z = e.logits(h)
        d = e.draft(h[:-1], t[1:], cache, 0)
        k = min(64, len(ids))
        top = z[-k:].topk(5, -1)
        out.append(
            {
                "name": name, "kv": e.kv, "text": text if len(text) < 6000 else None, "ids": ids, "first": len(ids) - k,
                "argmax": top[1][:, 0].tolist(), "top_ids": top[1].tolist(),
                "top_logits": [[round(v, 4) for v in r] for r in top[0].tolist()],
                "draft_argmax": d[-(k - 1) :].argmax(-1).tolist(), "greedy": generate(e, ids, 32),
            }
        )
        out[-1]["greedy_text"] = tok.decode(out[-1]["greedy"], skip_special_tokens=False)
        if out[-1]["text"] is None:
            del out[-1]["text"]
    with open(path, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(x) for x in out) + "\n]\n")
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--kv", default="bf16")
    p.add_argument("--out")
    p.add_argument("--cases", type=int, default=10 ** 6, help="at most so many cases of each distance")
    p.add_argument("--windows", type=int)
    p.add_argument("--reference")
    p.add_argument("--no-controls", action="store_true")
    a = p.parse_args()
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    e, tok, t0 = Engine(a.model, dev, a.kv), load_tokenizer(a.model), time.time()
    here = os.path.join(a.model, "eval")
    filler = open(os.path.join(here, "filler.txt"), encoding="ascii").read()
    fig = {"kv": a.kv, "heldout": heldout(e, tok, open(os.path.join(here, "heldout.txt")).read(), limit=a.windows)}
    print(json.dumps(fig["heldout"]), f"{time.time() - t0:.0f} s", flush=True)
    cases, count = [], {}
    for line in open(os.path.join(here, "recall.jsonl")):
        c = json.loads(line)
        g = c["id"].split("-")[0]
        count[g] = count.get(g, 0) + 1
        if count[g] <= a.cases:
            cases.append(c)
    res, each = recall(e, tok, cases, filler, False)
    fig["recall"] = {k: v[0] / v[1] for k, v in res.items()}
    fig["wrong"] = [k for k, v in each.items() if not v]
    kinds = {}
    for c in cases:
        r = kinds.setdefault(c["kind"], [0, 0])
        r[0], r[1] = r[0] + each[c["id"]], r[1] + 1
    fig["recall_by_kind"] = {k: f"{v[0]}/{v[1]}" for k, v in sorted(kinds.items())}
    print(json.dumps(fig["recall"]), json.dumps(fig["recall_by_kind"]), f"{time.time() - t0:.0f} s", flush=True)
    if not a.no_controls:
        res, _ = recall(e, tok, [c for c in cases if c["id"].startswith("2k4k")], filler, True)
        fig["controls"] = {k: v[0] / v[1] for k, v in res.items()}
        print(json.dumps(fig["controls"]), f"{time.time() - t0:.0f} s", flush=True)
    demo(e, tok, here)
    torch.manual_seed(5)
    for text in ("It was a fine morning in spring, and", "\"I have never seen such a house,\" said"):
        ids = tok.encode(text, add_special_tokens=False).ids
        print(text + tok.decode(generate(e, ids, 80, 0.7)), flush=True)
    if a.reference:
        held = open(os.path.join(here, "heldout.txt")).read().split("\n\n")
        one = next(c for c in cases if c["id"].startswith("1k"))
        two = next(c for c in cases if c["id"].startswith("2k4k"))
        reference(
            e,
            tok,
            [
                ("short", held[1][:400].rsplit(" ", 1)[0]),
                ("recall-1k " + one["id"], join(one["prompt"], filler)),
                ("recall-2k4k " + two["id"], join(two["prompt"], filler)),
            ],
            a.reference,
        )
    if a.out:
        json.dump(fig, open(a.out, "w"), indent=1)


if __name__ == "__main__":
    main()
