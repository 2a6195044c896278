# SPDX-License-Identifier: Apache-2.0
"""Writes the checkpoint of quire-mini under the hub's names: config, tokenizer configuration, fp8 shards below 4 MB.

    python export.py --state OUT/state.pt --model DIR
    python export.py --random --model DIR          (untrained weights, to try the format)
"""

import argparse
import glob
import json
import os

import torch
from safetensors.torch import save_file

from data import SPECIAL
from model import CONFIG, E, L, N, Mini, quant_weight

SHARD_BYTES = 3_900_000


def tensors(net):
    """(name, tensor) in checkpoint order; fp8 matrices come with their weight_scale_inv."""
    sd = {k: v.detach().float().cpu() for k, v in net.state_dict().items()}

    def bf(name, t):
        yield name, t.to(torch.bfloat16).contiguous()

    def fp8(name, t):
        q, s, _ = quant_weight(t)
        yield name + ".weight", q.to(torch.float8_e4m3fn).contiguous()
        yield name + ".weight_scale_inv", s.float().contiguous()

    yield from bf("model.embed_tokens.weight", sd["embed"])
    for l in range(N):
        p = f"model.layers.{l}."
        if l == L:
            yield from bf(p + "enorm.weight", sd["enorm"])
            yield from bf(p + "hnorm.weight", sd["hnorm"])
            yield from bf(p + "eh_proj.weight", sd["eh"][0])
        yield from bf(p + "input_layernorm.weight", sd["in_norm"][l])
        a = p + "self_attn."
        yield from fp8(a + "q_a_proj", sd["q_a"][l])
        yield from bf(a + "q_a_layernorm.weight", sd["qa_norm"][l])
        yield from fp8(a + "q_b_proj", sd["q_b"][l])
        yield from fp8(a + "kv_a_proj_with_mqa", sd["kv_a"][l])
        yield from bf(a + "kv_a_layernorm.weight", sd["kva_norm"][l])
        yield from fp8(a + "kv_b_proj", sd["kv_b"][l])
        yield from fp8(a + "o_proj", sd["o"][l])
        yield from fp8(a + "indexer.wq_b", sd["wq_b"][l])
        yield from fp8(a + "indexer.wk", sd["wk"][l])
        yield from bf(a + "indexer.k_norm.weight", sd["kn_w"][l])
        yield from bf(a + "indexer.k_norm.bias", sd["kn_b"][l])
        yield from bf(a + "indexer.weights_proj.weight", sd["wp"][l])
        yield from bf(p + "post_attention_layernorm.weight", sd["post_norm"][l])
        m = p + "mlp."
        if l == 0:
            for n in ("gate", "up", "down"):
                yield from fp8(f"{m}{n}_proj", sd[n][0])
        else:
            yield from bf(m + "gate.weight", sd["router"][l - 1])
            yield m + "gate.e_score_correction_bias", sd["bias"][l - 1].float().contiguous()
            for j in range(E + 1):
                x = f"{m}experts.{j}." if j < E else m + "shared_experts."
                for n in ("gate", "up", "down"):
                    yield from fp8(f"{x}{n}_proj", sd["e_" + n][l - 1, j])
        if l == L:
            yield from bf(p + "shared_head.norm.weight", sd["sh_norm"])
    yield from bf("model.norm.weight", sd["final_norm"])
    yield from bf("lm_head.weight", sd["head"])


def write(net, out):
    os.makedirs(out, exist_ok=True)
    for f in glob.glob(os.path.join(out, "model-*.safetensors")):
        os.remove(f)
    shards, size = [{}], 0
    for name, t in tensors(net):
        b = t.numel() * t.element_size()
        if size + b > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = t
        size += b
    where, total = {}, 0
    for i, s in enumerate(shards):
        f = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file(s, os.path.join(out, f), metadata={"format": "pt"})
        os.chmod(os.path.join(out, f), 0o644)
        for n, t in s.items():
            where[n] = f
            total += t.numel() * t.element_size()

    def dump(name, x):
        with open(os.path.join(out, name), "w", encoding="utf-8") as f:
            json.dump(x, f, indent=2, ensure_ascii=False)
            f.write("\n")
    dump("model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": where})
    dump("config.json", CONFIG)
    dump("generation_config.json", {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "do_sample": True,
                                    "temperature": 0.7, "top_p": 0.95})
    special = {str(i): {"content": t, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                        "special": True} for i, t in enumerate(SPECIAL)}
    dump("tokenizer_config.json", {
        "add_bos_token": False, "add_eos_token": False, "added_tokens_decoder": special, "bos_token": SPECIAL[0],
        "eos_token": SPECIAL[1], "pad_token": SPECIAL[2], "unk_token": None, "clean_up_tokenization_spaces": False,
        "model_max_length": 8192, "tokenizer_class": "PreTrainedTokenizerFast"})
    print(f"{len(where)} tensors, {total / 1e6:.1f} MB in {len(shards)} shards")


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--state")
    p.add_argument("--random", action="store_true")
    p.add_argument("--model", required=True)
    a = p.parse_args()
    torch.manual_seed(1)
    net = Mini()
    if not a.random:
        net.load_state_dict({k: v.float() for k, v in torch.load(a.state, map_location="cpu").items()})
    write(net, a.model)
