# SPDX-License-Identifier: Apache-2.0
"""Trains quire-mini on one GPU in minutes.

    python train.py --work DIR --model DIR --out DIR --plan plan.json [--resume out/state.pt]

The plan is a list of phases, each {"seconds", "S", "B", "lr": [from, to], "sparse", "quant", "kl", "recall"}:
  1. dense attention, short rows: language and recall from near;
  2. dense attention, long rows; the indexer learns the attention's distribution (KL, gradients to the indexer only);
  3. sparse attention: each row attends the indexer's top-k; weights, latents and index vectors rounded to fp8 in the
     forward pass (straight-through), so that the stored fp8 weights cost nothing;
  4. the same with rows of 8192.
Phases are measured in seconds, so the schedule fits the machine it runs on.  OUT/log.txt tells what happened;
OUT/state.pt is rewritten at the end of each phase and every `--save` seconds.
"""

import argparse
import json
import math
import os
import time

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F

import model as M
import sparse
from data import Source
from model import A, DN, DR, DV, E, N, SCALE, TOPK, Mini

# ------------------------------------------------------------------------------------------------------- attention


def sdpa_pad(q, k, v, bias):
    """Flash attention wants equal head sizes: pad the values with zeros."""
    v = F.pad(v, (0, DN + DR - DV))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=SCALE)[..., :DV]


def sdpa_plain(q, k, v, bias):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=bias is None, scale=SCALE)


def with_backend(name, fn):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    b = getattr(SDPBackend, name)

    def run(q, k, v, bias):
        with sdpa_kernel(b):
            return fn(q, k, v, bias)
    return run


def pick_attention(dev, log, S=4096, B=8, masked=False):
    """The fastest way to compute attention here, by trying."""
    if dev == "cpu":
        return sdpa_plain
    cand = {
        "efficient": with_backend("EFFICIENT_ATTENTION", sdpa_plain),
        "cudnn": with_backend("CUDNN_ATTENTION", sdpa_plain),
    }
    if not masked:
        cand["flash, padded"] = with_backend("FLASH_ATTENTION", sdpa_pad)
    q = torch.randn(B, A, S, DN + DR, device=dev, dtype=torch.bfloat16)
    k, v = torch.randn_like(q), torch.randn(B, A, S, DV, device=dev, dtype=torch.bfloat16)
    bias = None
    if masked:
        keep = (torch.rand(B, 1, S, S, device=dev) < 0.05).tril() | torch.eye(S, device=dev, dtype=torch.bool)
        bias = torch.zeros(B, 1, S, S, device=dev, dtype=torch.bfloat16).masked_fill_(~keep, float("-inf"))
    ref, best = None, None
    for name, fn in cand.items():
        try:
            x = [t.clone().requires_grad_() for t in (q, k, v)]
            for i in range(4):
                if i == 1:
                    torch.cuda.synchronize()
                    t0 = time.time()
                o = fn(*x, bias)
                o.backward(torch.ones_like(o))
            torch.cuda.synchronize()
            ms = (time.time() - t0) / 3 * 1e3
            g = x[0].grad.float()
            ref = ref if ref is not None else (o.float(), g)
            err = max(
                ((o.float() - ref[0]).norm() / ref[0].norm()).item(), ((g - ref[1]).norm() / ref[1].norm()).item()
            )
            log(f"attention {name}{' masked' if masked else ''}: {ms:.2f} ms at B {B} S {S}, difference {err:.1e}")
            if err < 3e-2 and (best is None or ms < best[0]):
                best = (ms, fn)
        except Exception as e:                                   # a backend that is not there
            log(f"attention {name}{' masked' if masked else ''}: no ({str(e).splitlines()[0][:100]})")
    torch.cuda.empty_cache()
    return best[1]


# --------------------------------------------------------------------------------------------------------- optimiser


def orthogonalise(G, steps=5):
    """Newton-Schulz iteration of the Muon optimiser on a batch of matrices."""
    a, b, c = 3.4445, -4.7750, 2.0315
    X = G.bfloat16()
    flip = X.shape[-2] > X.shape[-1]
    if flip:
        X = X.transpose(-1, -2)
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        Y = X @ X.transpose(-1, -2)
        X = a * X + (b * Y + c * (Y @ Y)) @ X
    return X.transpose(-1, -2) if flip else X


class Optimiser:
    """Muon for the matrices of the trunk, Adam for the rest; one learning-rate multiplier for all."""

    def __init__(self, net, muon_lr=0.02):
        self.muon, adam = [], []
        for n, p in net.named_parameters():
            if n in Mini.MUON:
                self.muon.append(p)
            else:
                lr = {"embed": 0.02, "head": 0.003, "router": 0.003, "wq_b": 0.003, "wk": 0.003, "wp": 0.003}.get(
                    n, 0.005
                )
                adam.append({"params": [p], "lr": lr, "base": lr})
        self.adam = torch.optim.AdamW(
            adam, betas=(0.9, 0.97), eps=1e-9, weight_decay=0.0, fused=adam[0]["params"][0].is_cuda
        )
        self.buf = [torch.zeros_like(p) for p in self.muon]
        self.lr = muon_lr

    @torch.no_grad()
    def step(self, mult, momentum=0.95):
        for g in self.adam.param_groups:
            g["lr"] = g["base"] * mult
        self.adam.step()
        grads = [p.grad for p in self.muon]
        torch._foreach_lerp_(self.buf, grads, 1 - momentum)
        torch._foreach_lerp_(grads, self.buf, momentum)           # Nesterov
        for p, g in zip(self.muon, grads):
            u = orthogonalise(g.flatten(0, -3))
            lr = self.lr * mult * max(1.0, p.shape[-2] / p.shape[-1]) ** 0.5
            p.mul_(1 - lr * 0.02)
            p.add_(u.view_as(p).to(p.dtype), alpha=-lr)

    def zero(self):
        for p in self.muon:
            p.grad = None
        self.adam.zero_grad(set_to_none=True)


# ----------------------------------------------------------------------------------------------------------- forward


class Fns:
    """The functions of the model, compiled or not."""

    def __init__(self, compiled):
        c = (lambda f: torch.compile(f, dynamic=False)) if compiled else (lambda f: f)
        self.att, self.dense, self.moe = c(M.attention_inputs), c(M.dense_mlp), c(M.moe_mlp)
        self.idx, self.kl = c(M.index_inputs), c(M.index_loss)
        self.loss, self.mtp_in, self.norm = c(token_loss), c(mtp_input), c(lambda x, g: M.rms(x, g).bfloat16())
        M.fake_quant_weight_c = c(M.fake_quant_weight)


def token_loss(h, head, target, weight):
    """(weighted mean loss, plain mean over weight 1, right answers' words, their number)."""
    z = F.linear(h, head).float()
    nll = F.cross_entropy(z.flatten(0, -2), target.flatten(), reduction="none").view(target.shape)
    w = weight.float()
    with torch.no_grad():
        ans = w > 3
        hit = ((z.argmax(-1) == target) & ans).sum()
        plain = (nll * (w == 1)).sum() / (w == 1).sum().clamp_min(1)
    return (nll * w).sum() / w.sum(), plain, hit, ans.sum()


def mtp_input(e, h, enorm, hnorm, eh):
    u = torch.cat((M.rms(e, enorm).bfloat16(), M.rms(h, hnorm).bfloat16()), -1)
    return F.linear(u, eh).float()


def forward(net, fns, att, tokens, weight, ph, cos, sin, rows):
    """tokens [B,S+2], weight [B,S+2].  Returns the loss and a dict of figures."""
    S = tokens.shape[1] - 2
    quant, sp = ph.get("quant", False), ph.get("sparse", False)
    W = net.layer_weights(quant)
    emb = net.embed + (net.embed.bfloat16().float() - net.embed).detach()
    head = net.head.bfloat16()
    fig, kl, loads = {}, 0.0, []

    def layer(l, x):
        nonlocal kl
        w = W[l]
        q, k, v, xn, qr = fns.att(x, w, cos, sin, quant)
        bias = None
        if sp:
            with torch.no_grad():
                iq, ik, ih = fns.idx(xn, qr, w, cos, sin, True)
                bias = sparse.topk_bias(iq, ik, ih, TOPK)
        if ph.get("kl"):
            kl = kl + fns.kl(q.detach(), k.detach(), xn.detach(), qr.detach(), w, cos, sin, rows, quant)
        o = att[1 if sp else 0](q, k, v, bias)
        if l == 0:
            return fns.dense(x, o, w)
        x, load = fns.moe(x, o, w, net.bias[l - 1])
        loads.append(load)
        return x

    x = F.embedding(tokens[:, :S], emb)
    for l in range(N - 1):
        x = layer(l, x)
    h = fns.norm(x, net.final_norm)
    loss, plain, hit, ans = fns.loss(h, head, tokens[:, 1:S + 1], weight[:, 1:S + 1])
    u = fns.mtp_in(F.embedding(tokens[:, 1:S + 1], emb), h, net.enorm, net.hnorm, net.eh[0].bfloat16())
    g = fns.norm(layer(N - 1, u), net.sh_norm)
    mloss, mplain, mhit, _ = fns.loss(g, head, tokens[:, 2:], weight[:, 2:])
    fig.update(
        loss=loss.detach(), text=plain, hit=hit, ans=ans, mtp=mplain,
        kl=kl.detach() / N if ph.get("kl") else torch.zeros(()),
    )
    return loss + 0.3 * mloss + (kl if ph.get("kl") else 0.0), fig, torch.stack(loads)


# -------------------------------------------------------------------------------------------------------------- data


def worker(a, seed, jobs, out):
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    src = Source(a.work, a.model, seed)
    while True:
        ph = jobs.get()
        if ph is None:
            return
        src.recall = ph.get("recall", 0.7)
        t = torch.empty(ph["b"], ph["S"] + 2, dtype=torch.int16)
        w = torch.empty(ph["b"], ph["S"] + 2, dtype=torch.uint8)
        for i in range(ph["b"]):
            x, y = src.next(ph["S"])
            t[i], w[i] = torch.from_numpy(x.astype("int16")), torch.from_numpy(y)
        out.put((ph["id"], t.numpy(), w.numpy()))


class Loader:
    """Batches made by worker processes, a few ahead; what an earlier phase left over is thrown away."""

    def __init__(self, a, n):
        self.jobs, self.out = mp.Queue(), mp.Queue(maxsize=64)
        self.procs = [
            mp.Process(target=worker, args=(a, 1000 * a.seed + i, self.jobs, self.out), daemon=True) for i in range(n)
        ]
        for p in self.procs:
            p.start()
        self.ph, self.ahead = None, 3

    def phase(self, ph, ident):
        part = min(ph["B"], 8)
        self.ph = dict(ph, id=ident, b=part)
        self.parts = ph["B"] // part
        while True:                                              # drop orders not yet taken
            try:
                self.jobs.get_nowait()
            except Exception:
                break
        for _ in range(self.parts * self.ahead):
            self.jobs.put(self.ph)

    def batch(self, dev):
        ts, ws = [], []
        while len(ts) < self.parts:
            i, t, w = self.out.get()
            if i != self.ph["id"]:
                continue
            self.jobs.put(self.ph)
            ts.append(torch.from_numpy(t)), ws.append(torch.from_numpy(w))
        t, w = torch.cat(ts), torch.cat(ws)
        if dev == "cuda":
            t, w = t.pin_memory(), w.pin_memory()
        return t.to(dev, non_blocking=True).long(), w.to(dev, non_blocking=True)


# -------------------------------------------------------------------------------------------------------------- main


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--work", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--plan", required=True)
    p.add_argument("--resume")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--workers", type=int, default=13)
    p.add_argument("--save", type=float, default=120)
    p.add_argument("--no-compile", action="store_true")
    a = p.parse_args()
    os.makedirs(a.out, exist_ok=True)
    plan = json.load(open(a.plan))
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    logf = open(os.path.join(a.out, "log.txt"), "a")
    start = time.time()

    def log(s):
        line = f"{time.time() - start:7.1f} {s}"
        print(line, flush=True)
        logf.write(line + "\n")
        logf.flush()

    loader = Loader(a, a.workers)                                # before CUDA starts: it forks
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    net = Mini().to(dev)
    if a.resume:
        net.load_state_dict({k: v.float() for k, v in torch.load(a.resume, map_location=dev).items()})
    opt = Optimiser(net)
    fns = Fns(dev == "cuda" and not a.no_compile)
    loader.phase(plan[0], 0)
    att = (pick_attention(dev, log), pick_attention(dev, log, masked=True))
    device_name = torch.cuda.get_device_name() if dev == "cuda" else dev
    log(f"{sum(x.numel() for x in net.parameters()) / 1e6:.2f} M parameters on {device_name}")

    def save():
        torch.save(net.state_dict(), os.path.join(a.out, "state.tmp"))
        os.replace(os.path.join(a.out, "state.tmp"), os.path.join(a.out, "state.pt"))

    step, seen, saved = 0, 0, time.time()
    for pi, ph in enumerate(plan):
        S, B = ph["S"], ph["B"]
        if pi:
            loader.phase(ph, pi)
        cos, sin = M.rope_tables(S, dev)
        begun, n, t_log, n_log, ran = time.time(), 0, time.time(), 0, None
        hist = []
        while True:
            frac = (time.time() - begun) / ph["seconds"]
            if frac >= 1 or n >= ph.get("steps", 1 << 30):
                break
            mult = ph["lr"][0] + (ph["lr"][1] - ph["lr"][0]) * min(1.0, frac)
            warm = min(1.0, (step + 1) / 60)
            tokens, weight = loader.batch(dev)
            rows = None
            if ph.get("kl"):
                r = torch.rand(B, S, device=dev) + (weight[:, 1:S + 1] > 3) * 0.5
                rows = r.topk(min(ph.get("rows", 64), S), -1)[1]
            loss, fig, load = forward(net, fns, att, tokens, weight, ph, cos, sin, rows)
            loss.backward()
            opt.step(mult * warm, 0.85 + 0.1 * min(1.0, step / 200))
            opt.zero()
            if not ph.get("quant"):                              # balance of the experts, without an auxiliary loss
                with torch.no_grad():
                    net.bias += 1e-3 * torch.sign(load.mean(-1, keepdim=True) - load)
            hist.append(fig)
            step, n, seen = step + 1, n + 1, seen + B * S
            if n in (1, 5, 20) or n % 50 == 0:
                f = {k: torch.stack([h[k].float() for h in hist]).sum().item() for k in hist[0]}
                m, dt = len(hist), time.time() - t_log
                log(f"phase {pi} step {step} {m * B * S / dt / 1e3:.0f}k tok/s loss {f['loss'] / m:.3f} "
                    f"text {f['text'] / m:.3f} mtp {f['mtp'] / m:.3f} answers {f['hit'] / max(1, f['ans']):.3f} "
                    f"kl {f['kl'] / m:.3f} load {load.max().item() / load.mean().item():.2f} lr {mult * warm:.3f} "
                    f"seen {seen / 1e6:.0f}M")
                if not math.isfinite(f["loss"]):
                    raise SystemExit("the loss is not finite")
                hist, t_log = [], time.time()
            if time.time() - saved > a.save:
                save()
                saved = time.time()
        log(f"phase {pi} done: {n} steps, {time.time() - begun:.0f} s, peak memory "
            f"{torch.cuda.max_memory_allocated() / 2**30 if dev == 'cuda' else 0:.1f} GiB")
        save()
    open(os.path.join(a.out, "done"), "w").write(f"{seen} tokens, {step} steps, {time.time() - start:.0f} s\n")
    for w in loader.procs:
        w.kill()
    os._exit(0)                                                  # without waiting for the queues to empty


if __name__ == "__main__":
    main()
