# SPDX-License-Identifier: Apache-2.0
"""Two Triton kernels for the sparse phase of training: index scores, and the exact top-k as an additive mask.

`topk_mask` keeps the K largest scores of each row; equal scores go to the lower position, as in the engine.  The torch
versions are the oracle and the fallback without a GPU.
"""

import torch
import torch.nn.functional as F

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None


def scores_torch(q, k, w):
    """q [B,S,HI,D], k [B,S,D], w [B,S,HI] -> [B,S,S] float32, -inf above the diagonal."""
    B, S, HI, D = q.shape
    out = torch.empty(B, S, S, device=q.device, dtype=torch.float32)
    for b in range(B):
        d = torch.relu(torch.einsum("shd,td->sht", q[b].float(), k[b].float()))
        out[b] = (d * w[b][..., None]).sum(1)
    seen = torch.ones(S, S, device=q.device, dtype=torch.bool).tril()
    return out.masked_fill_(~seen, float("-inf"))


def topk_mask_torch(s, K):
    """[B,S,S] scores -> bool, K largest a row, ties to the lower position, never above the diagonal."""
    S = s.shape[-1]
    order = torch.sort(s, dim=-1, descending=True, stable=True)[1][..., :min(K, S)]
    m = torch.zeros_like(s, dtype=torch.bool).scatter_(-1, order, True)
    return m & (s > float("-inf"))


if triton is not None:
    @triton.jit
    def _scores(Q, K, W, Out, S, HI: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
        n0, m0, b = tl.program_id(0) * BN, tl.program_id(1) * BM, tl.program_id(2)
        rm, rn, rd = m0 + tl.arange(0, BM), n0 + tl.arange(0, BN), tl.arange(0, D)
        acc = tl.zeros((BM, BN), tl.float32)
        row = b.to(tl.int64) * S + rm
        if n0 < m0 + BM:
            k = tl.load(K + (b.to(tl.int64) * S + rn)[:, None] * D + rd[None, :])
            for h in range(HI):
                q = tl.load(Q + (row * HI + h)[:, None] * D + rd[None, :])
                d = tl.dot(q, tl.trans(k))
                w = tl.load(W + row * HI + h)
                acc += tl.maximum(d, 0.0) * w[:, None]
        acc = tl.where(rn[None, :] <= rm[:, None], acc, float("-inf"))
        tl.store(Out + row[:, None] * S + rn[None, :], acc)

    @triton.jit
    def _topk(X, Out, S, K, BLOCK: tl.constexpr):
        pid = tl.program_id(0).to(tl.int64)
        t = (pid % S).to(tl.int32)
        c = tl.arange(0, BLOCK)
        x = tl.load(X + pid * S + c, mask=c < S, other=float("-inf"))
        x = tl.where(x == 0.0, 0.0, x)
        i = x.to(tl.int32, bitcast=True)
        key = tl.where(i >= 0, i, i ^ 0x7FFFFFFF)               # ordered like the floats
        seen = c <= t
        lo = tl.min(tl.where(seen, key, 2147483647), 0)         # count(key >= lo) >= K or all are kept
        hi = tl.max(tl.where(seen, key, -2147483648), 0)
        lo64, hi64 = lo.to(tl.int64), hi.to(tl.int64)
        for _ in range(33):                                     # largest T with count(key >= T) >= K
            mid = (lo64 + hi64 + 1) >> 1
            n = tl.sum((seen & (key >= mid.to(tl.int32))).to(tl.int32), 0)
            go = (n >= K) & (lo64 < hi64)
            hi64 = tl.where(go | (lo64 >= hi64), hi64, mid - 1)
            lo64 = tl.where(go, mid, lo64)
        T = lo64.to(tl.int32)
        above = seen & (key > T)
        equal = seen & (key == T)
        need = K - tl.sum(above.to(tl.int32), 0)
        rank = tl.cumsum(equal.to(tl.int32), 0)
        keep = above | (equal & (rank <= need))
        tl.store(Out + pid * S + c, tl.where(keep, 0.0, float("-inf")).to(Out.dtype.element_ty), mask=c < S)


def topk_bias(q, k, w, K, dtype=torch.bfloat16):
    """Additive attention mask [B,1,S,S] (0 kept, -inf not)."""
    B, S, HI, D = q.shape
    if triton is None or not q.is_cuda:
        m = topk_mask_torch(scores_torch(q, k, w), K)
        return torch.zeros(B, 1, S, S, device=q.device, dtype=dtype).masked_fill_(~m[:, None], float("-inf"))
    s = torch.empty(B, S, S, device=q.device, dtype=torch.float32)
    _scores[(S // 128, S // 128, B)](q.contiguous(), k.contiguous(), w.contiguous(), s, S, HI, D, 128, 128, num_warps=8)
    out = torch.empty(B, 1, S, S, device=q.device, dtype=dtype)
    _topk[(B * S,)](s, out, S, K, triton.next_power_of_2(S), num_warps=4 if S <= 4096 else 8)
    return out
