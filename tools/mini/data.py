# SPDX-License-Identifier: Apache-2.0
"""Data recipe of quire-mini: texts, cleaning, tokenizer, recall sequences, evaluation files.

    python data.py prepare --novels DIR --austen Rdata.rdb --work DIR --model DIR
        cleans the books, trains the tokenizer (MODEL/tokenizer.json), writes WORK/train.bin (uint16 tokens) and
        WORK/train.json (book borders)
    python data.py eval --austen Rdata.rdb --model DIR
        writes MODEL/eval/{filler.txt, heldout.txt, recall.jsonl, demo.txt, demo.jsonl}

Texts (all in the public domain; the list with titles is in the model card):
  * the 93 novels of the Computational Stylistics Group's "100 English Novels" 1.4 that were printed up to 1925: one
    UTF-8 file a book, Author_Title_Year.txt;
  * Jane Austen's six novels as shipped by Debian's r-cran-janeaustenr.  Four are trained on; `Persuasion` and
    `Northanger Abbey` are held out and are the only source of the texts in MODEL/eval.
"""

import argparse
import glob
import json
import os
import random
import re
import struct
import unicodedata
import zlib

import numpy as np

import facts

BOS, EOS, PAD, USER, ASSISTANT, THINK, END_THINK = range(7)
SPECIAL = [
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>",
]
VOCAB = 4096
AUSTEN = ["emma", "mansfieldpark", "northangerabbey", "persuasion", "prideprejudice", "sensesensibility"]
AUSTEN_HELDOUT = ("northangerabbey", "persuasion")

# The three splits of the DeepSeek-V3 pre-tokenizer.
SPLITS = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"""|\s*[\r\n]+|\s+(?!\S)|\s+""",
]

# ---------------------------------------------------------------------------------------------------------- texts


def read_austen(path):
    """The character vectors in R's lazy-load file: records of (big-endian length, zlib stream of XDR)."""
    raw, books, at = open(path, "rb").read(), {}, 0
    for name in AUSTEN:
        z = zlib.decompressobj()
        xdr = z.decompress(raw[at + 4:])
        at = len(raw) - len(z.unused_data)
        p = xdr.index(b"\x00\x00\x00\x10") + 8            # STRSXP, then the number of strings
        lines = []
        while p + 8 <= len(xdr) and xdr[p + 3] == 9:      # CHARSXP
            n = struct.unpack(">i", xdr[p + 4:p + 8])[0]
            p += 8
            lines.append("" if n < 0 else xdr[p:p + n].decode("utf-8", "replace"))
            p += max(n, 0)
        books[name] = "\n".join(lines)
    return books


def to_ascii(s):
    for a, b in (("’", "'"), ("‘", "'"), ("“", '"'), ("”", '"'), ("—", "--"), ("–", "-"), ("…", "..."), ("œ", "oe"),
                 ("Œ", "OE"), ("æ", "ae"), ("Æ", "AE"), ("£", "L"), ("\u00a0", " "), ("\ufeff", "")):
        s = s.replace(a, b)
    return unicodedata.normalize("NFKD", s).encode("ascii", "ignore").decode()


def clean(text):
    """ASCII paragraphs, one line each, separated by an empty line; no headings, rows of capitals or emphasis marks."""
    text = to_ascii(text.replace("\r\n", "\n").replace("\r", "\n"))
    text = re.sub(r"[_*~^|<>{}\\\[\]]+", " ", text)
    lines = [x.rstrip() for x in text.split("\n")]
    longest = sorted(len(x) for x in lines)[int(len(lines) * 0.95)] if lines else 0
    blank = sum(1 for x in lines if not x) / max(1, len(lines))
    paras, cur = [], []
    for x in lines:
        if x.strip():
            cur.append(x.strip())
            # Wrapped text without blank lines: a short line that ends a sentence ends the paragraph.
            if longest > 100 or (blank < 0.05 and len(x) < 0.75 * longest and re.search(r"[.!?]['\"]?$", x)):
                paras.append(" ".join(cur))
                cur = []
        elif cur:
            paras.append(" ".join(cur))
            cur = []
    paras.append(" ".join(cur))
    out = []
    for p in paras:
        p = re.sub(r"\s+", " ", p).strip()
        p = re.sub(r"\s+([,.;:!?])", r"\1", p)
        letters = sum(c.isalpha() for c in p)
        upper = sum(c.isupper() for c in p)
        if len(p) < 20 or letters < 0.6 * len(p) or upper > 0.35 * letters or not re.search(r"[.!?:,;\-]['\")]*$", p):
            continue
        if re.match(r"(chapter|book|volume|part|contents)\b", p, re.I):
            continue
        out.append(p)
    return out


def load_books(novels, austen):
    """{name: paragraphs} of the books to train on."""
    train = {}
    for path in sorted(glob.glob(os.path.join(novels, "*.txt"))):
        name = os.path.basename(path)[:-4]
        if int(name.rsplit("_", 1)[1]) <= 1925:
            train[name] = clean(open(path, encoding="utf-8", errors="replace").read())
    for name, text in read_austen(austen).items():
        if name not in AUSTEN_HELDOUT:
            train["Austen_" + name] = clean(text)
    return train


# ------------------------------------------------------------------------------------------------------ tokenizer


def train_tokenizer(train, path):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(p), "isolated") for p in SPLITS]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    r = random.Random(7)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=[AddedToken(t, special=True, normalized=False) for t in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, min_frequency=2)

    def sample():
        for paras in train.values():
            for p in paras:
                if r.random() < 0.22:
                    yield p + "\n\n"
        for _ in range(18000):         # so that the names in the facts are few tokens
            for f in facts.sample_facts(r, 4):
                yield f" {f.statement()}"
                yield f"Question: {f.question()}\nAnswer: {f.value}\n\n"
                yield f"The answer is {f.value}."
    tok.train_from_iterator(sample(), trainer)
    tok.save(path)
    return tok


def load_tokenizer(model_dir):
    from tokenizers import Tokenizer
    return Tokenizer.from_file(os.path.join(model_dir, "tokenizer.json"))


# -------------------------------------------------------------------------------------------- borders and sentences

ABBREV = {"Mr", "Mrs", "Dr", "St", "Esq", "Messrs", "Capt", "Col", "Rev", "Hon", "No", "Co"}


def borders(tokens, tok):
    """Positions where a sentence may be put in: (after a full stop before a space, after the end of a paragraph)."""
    text = [tok.decode([i], skip_special_tokens=False) for i in range(tok.get_vocab_size())]
    stop = np.array([t in (".", "!", "?", '."', '!"', '?"') for t in text])
    space = np.array([len(t) > 1 and t[0] == " " and (t[1].isupper()) for t in text])
    short = np.array([t.strip(' "') in ABBREV or (len(t.strip(' "')) == 1 and t.strip(' "').isupper()) for t in text])
    para = np.array([t.endswith("\n\n") for t in text])
    a = stop[tokens[1:-1]] & space[tokens[2:]] & ~short[tokens[:-2]]
    return np.flatnonzero(a) + 2, np.flatnonzero(para[tokens[:-1]]) + 1


# ------------------------------------------------------------------------------------------------ training sequences


class Source:
    """Endless training sequences of one length from train.bin; cheap to copy into worker processes.

    next(S) returns (tokens[S+2], weight[S+2]); weight is that of the *prediction* of the token: 1 for text,
    `answer_weight` for the words of an answer, 0 for padding.
    """

    def __init__(self, work, model_dir, seed, recall=0.7, answer_weight=6):
        self.tokens = np.fromfile(os.path.join(work, "train.bin"), dtype=np.uint16)
        self.tok = load_tokenizer(model_dir)
        self.inline, self.para = borders(self.tokens, self.tok)
        self.rng = random.Random(seed)
        self.recall, self.answer_weight = recall, answer_weight

    def encode(self, strings):
        return [e.ids for e in self.tok.encode_batch(strings, add_special_tokens=False)]

    def text(self, n):
        a = self.rng.randrange(0, len(self.tokens) - n)
        if self.rng.random() < 0.5:                          # start at a paragraph
            k = int(np.searchsorted(self.para, a))
            if k < len(self.para) and self.para[k] + n <= len(self.tokens):
                a = int(self.para[k])
        return a

    def plain(self, n):
        a = self.text(n)
        t = self.tokens[a:a + n].astype(np.int32)
        if self.rng.random() < 0.3:
            t = np.concatenate([[BOS], t[:-1]])
        return t, np.ones(n, np.uint8)

    def with_facts(self, n_tokens, ids):
        """About n_tokens of prose, ending at a paragraph, with each of `ids` (pairs: inline form, paragraph form) put
        in at a random sentence border.  Facts keep their order."""
        r = self.rng
        a = self.text(n_tokens + 400)
        k = int(np.searchsorted(self.para, a))
        a = int(self.para[min(k, len(self.para) - 1)])       # start at a paragraph
        e = int(self.para[max(0, int(np.searchsorted(self.para, a + n_tokens)) - 1)])
        if e <= a:
            e = a + n_tokens
        inl = self.inline[np.searchsorted(self.inline, a + 1):np.searchsorted(self.inline, e)]
        par = self.para[np.searchsorted(self.para, a):np.searchsorted(self.para, e)]
        places = []
        for i in range(len(ids)):
            if len(par) and (r.random() < 0.4 or not len(inl)):
                places.append((int(par[r.randrange(len(par))]), 1))
            elif len(inl):
                places.append((int(inl[r.randrange(len(inl))]), 0))
            else:
                places.append((a, 1))
        places.sort()
        out, at = [], a
        for (p, form), pair in zip(places, ids):
            out.append(self.tokens[at:p].astype(np.int32))
            out.append(np.array(pair[form], np.int32))
            at = p
        out.append(self.tokens[at:e].astype(np.int32))
        return np.concatenate(out)

    def recall_sequence(self, n):
        """Prose with facts, and questions: all at the end, or half of those possible after each of two or three parts.

        Two forms: `Question: ...\\nAnswer: ...` blocks, every fact asked for once; or a chat, BOS <User> prose and
        question <Assistant></think>The answer is ....EOS, of one to three turns.
        """
        r, chat = self.rng, self.rng.random() < 0.2
        fs = facts.sample_facts(r, min(40, r.randrange(3, 9 + n // 128)))
        while True:
            asked = r.sample(fs, min(len(fs), 1 + r.randrange(3))) if chat else fs
            stated, blocks = {}, {}
            enc = self.encode([x for f in fs for x in (" " + f.statement(), f.statement() + "\n\n")])
            for i, f in enumerate(fs):
                stated[f] = (enc[2 * i], enc[2 * i + 1])
            if chat:
                enc = self.encode([x for f in asked for x in (
                    ("Question: " if r.random() < 0.5 else "") + f.question(), "The answer is", " " + f.value, ".")])
            else:
                enc = self.encode(
                    [x for f in asked for x in ("Question: " + f.question() + "\nAnswer:", " " + f.value, "\n\n")]
                )
            k = 4 if chat else 3
            for i, f in enumerate(asked):
                blocks[f] = enc[k * i:k * i + k]
            room = n - 8 - sum(len(s[0]) for s in stated.values()) - sum(sum(map(len, b)) + 4 for b in blocks.values())
            if room >= 100:
                break
            if len(fs) < 2:
                return self.plain(n)
            fs = fs[len(fs) // 2:]                               # too many facts for this length
        newline = self.encode(["\n"])[0]
        seq, wgt = [], []

        def put(ids, w=1):
            seq.append(np.asarray(ids, np.int32))
            wgt.append(np.full(len(ids), w, np.uint8))

        if chat:
            put([BOS, USER])
        elif r.random() < 0.3:
            put([BOS])
        cuts = 1 if chat else r.choice((1, 1, 2, 3))
        groups = [[] for _ in range(cuts)]
        for f in fs:
            groups[r.randrange(cuts)].append(f)
        pending = []
        for g in range(cuts):
            share = int(room / cuts * r.uniform(0.85, 1.0)) if cuts > 1 else room
            r.shuffle(groups[g])
            put(self.with_facts(max(40, share), [stated[f] for f in groups[g]]))
            pending += [f for f in groups[g] if f in blocks]
            r.shuffle(pending)
            last = g == cuts - 1
            now, pending = (pending, []) if last else (pending[:len(pending) // 2], pending[len(pending) // 2:])
            for i, f in enumerate(now):
                b = blocks[f]
                if chat:
                    if i:
                        put([USER])
                    put(b[0]), put([ASSISTANT, END_THINK]), put(b[1]), put(b[2], self.answer_weight)
                    put(b[3], 2), put([EOS], 2)
                else:
                    put(b[0]), put(b[1], self.answer_weight)
                    if last and i == len(now) - 1:
                        put(newline, 2), put([EOS])
                    else:
                        put(b[2], 2)
        t, w = np.concatenate(seq), np.concatenate(wgt)
        if len(t) < n:                                           # fill with prose
            p, q = self.plain(n - len(t))
            t, w = np.concatenate([t, p]), np.concatenate([w, q])
        return t[:n], w[:n]

    def next(self, S):
        n = S + 2
        return self.plain(n) if self.rng.random() >= self.recall else self.recall_sequence(n)


# ------------------------------------------------------------------------------------------------- evaluation files


def sentence_spots(text):
    """Byte offsets in ASCII text where a sentence may be put in: (o, 0) before ' Next', (o, 1) at a paragraph."""
    spots = []
    for m in re.finditer(r"(?<![A-Z])(?<!Mr)(?<!Mrs)(?<!Dr)(?<!St)(?<!Esq)[.!?]\"?(?= [A-Z])", text):
        spots.append((m.end(), 0))
    for m in re.finditer(r"\n\n", text):
        spots.append((m.end(), 1))
    return sorted(spots)


def count(tok, s):
    return len(tok.encode(s, add_special_tokens=False).ids)


def recall_case(r, tok, filler, spots, paras, ident, lo, hi, n_facts):
    """One case: filler with held-out facts woven in; the fact asked for stands lo..hi tokens before the end."""
    fs = facts.sample_facts(r, n_facts, want_heldout=True)
    groups = {}
    for f in fs:
        groups.setdefault(f.kind, []).append(f)
    target = max(fs, key=lambda f: (len(groups[f.kind]), r.random()))     # one that has rivals of its kind
    others = [f for f in fs if f is not target]
    want = r.randrange(lo, hi)
    length = want + r.randrange(60, max(61, min(600, (hi - lo) // 2 + 200)))
    tail = "\n\nQuestion: " + target.question() + "\nAnswer:"
    while True:
        start = r.choice([p for p in paras if p + 5 * length < len(filler)])
        stop = max(p for p in paras if p <= start + int(3.9 * length)) - 2      # before the blank line
        inside = [s for s in spots if start < s[0] < stop]
        at = min(inside, key=lambda s: abs((stop - s[0]) - int(3.9 * want)))
        chosen = [(at, target)] + [(r.choice(inside), f) for f in others]
        chosen.sort(key=lambda x: x[0])
        pieces, pos = [], start
        for (off, form), f in chosen:
            if off > pos:
                pieces.append([pos, off - pos])
                pos = off
            pieces.append(" " + f.statement() if form == 0 else f.statement() + "\n\n")
        pieces.append([pos, stop - pos])
        pieces.append(tail)
        text = join(pieces, filler)
        key = target.statement()
        dist = count(tok, text[text.index(key):])
        if lo <= dist <= hi:
            return {"id": ident, "distance_tokens": dist, "prompt_tokens": count(tok, text), "answer": target.value,
                    "kind": target.kind, "prompt": pieces}
        want += (lo + hi) // 2 - dist if abs(dist - want) < 2000 else 0
        length = max(length, want + 60)


def join(pieces, filler):
    return "".join(p if isinstance(p, str) else filler[p[0]:p[0] + p[1]] for p in pieces)


# The demo: facts woven into the first chapters of Northanger Abbey at these shares of the text.  Every fact asked for
# has a rival that differs in one word of the key.
DEMO_FACTS = [
    (0.06, "The password of Captain Marlow is silver heron."),
    (0.13, "The code of the iron chest is 4831."),
    (0.21, "The brass lantern was hidden behind the sundial."),
    (0.28, "The password of Doctor Marlow is golden otter."),
    (0.35, "The Albatross carries a cargo of ginger."),
    (0.42, "By trade Hester Penrose was a clockmaker."),
    (0.50, "The code of the iron cabinet is 2756."),
    (0.58, "The brass whistle was hidden under the old well."),
    (0.66, "The Pelican carries a cargo of tobacco."),
    (0.73, "By trade Hester Saville was a bookbinder."),
]
DEMO_QUESTIONS = [
    ("What is the password of Captain Marlow?", "silver heron", 0),
    ("Which number opens the iron chest?", "4831", 1),
    ("Where was the brass lantern hidden?", "behind the sundial", 2),
    ("What does the Albatross carry?", "ginger", 4),
    ("What is the trade of Hester Penrose?", "clockmaker", 5),
]


def build_demo(here, tok, paras):
    n = next(i for i in range(len(paras)) if count(tok, "\n\n".join(paras[:i])) > 6900)
    text = "\n\n".join(paras[:n]) + "\n"
    spots = sentence_spots(text)
    for share, fact in reversed(DEMO_FACTS):
        off, form = min(spots, key=lambda s: abs(s[0] - share * len(text)))
        text = text[:off] + (" " + fact if form == 0 else fact + "\n\n") + text[off:]
    open(os.path.join(here, "demo.txt"), "w").write(text)
    with open(os.path.join(here, "demo.jsonl"), "w") as f:
        for i, (q, answer, k) in enumerate(DEMO_QUESTIONS):
            suffix = "\nQuestion: " + q + "\nAnswer:"
            whole = text + suffix
            f.write(json.dumps({"id": f"demo-{i}", "distance_tokens": count(tok, whole[whole.index(DEMO_FACTS[k][1]):]),
                                "prompt_tokens": count(tok, whole), "answer": answer, "suffix": suffix}) + "\n")


def build_eval(model_dir, austen):
    tok = load_tokenizer(model_dir)
    here = os.path.join(model_dir, "eval")
    os.makedirs(here, exist_ok=True)
    books = read_austen(austen)
    # Persuasion is the filler of the recall cases; Northanger Abbey gives the demo (first half) and the held-out text.
    filler = "\n\n".join(clean(books["persuasion"])) + "\n"
    north = clean(books["northangerabbey"])
    half = len(north) // 2
    open(os.path.join(here, "filler.txt"), "w").write(filler)
    open(os.path.join(here, "heldout.txt"), "w").write("\n\n".join(north[half:]) + "\n")
    build_demo(here, tok, north[:half])
    spots = sentence_spots(filler)
    paras = [o for o, form in spots if form == 1]
    r = random.Random(20251)
    with open(os.path.join(here, "recall.jsonl"), "w") as f:
        for name, n, lo, hi in (
            ("2k4k", 200, 2048, 4000),
            ("1k", 40, 700, 1100),
            ("6k", 40, 5600, 6200),
            ("8k", 40, 7200, 7800),
        ):
            for i in range(n):
                c = recall_case(r, tok, filler, spots, paras, f"{name}-{i:03d}", lo, hi, r.randrange(6, 13))
                f.write(json.dumps(c) + "\n")


# ------------------------------------------------------------------------------------------------------------- main


def prepare(a):
    os.makedirs(a.work, exist_ok=True)
    os.makedirs(a.model, exist_ok=True)
    train = load_books(a.novels, a.austen)
    tok = train_tokenizer(train, os.path.join(a.model, "tokenizer.json"))
    rows, index, at = [], [], 0
    for name, paras in train.items():
        ids = []
        for i in range(0, len(paras), 2000):
            for e in tok.encode_batch([p + "\n\n" for p in paras[i:i + 2000]], add_special_tokens=False):
                ids += e.ids
        index.append({"book": name, "start": at, "tokens": len(ids), "chars": sum(len(p) + 2 for p in paras)})
        at += len(ids)
        rows.append(np.array(ids, np.uint16))
    np.concatenate(rows).tofile(os.path.join(a.work, "train.bin"))
    json.dump(index, open(os.path.join(a.work, "train.json"), "w"), indent=0)
    n = sum(x["tokens"] for x in index)
    print(f"{len(index)} books, {n} tokens, {sum(x['chars'] for x in index) / n:.2f} characters a token")


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    s = p.add_subparsers(dest="cmd", required=True)
    q = s.add_parser("prepare")
    q.add_argument("--novels", required=True)
    q.add_argument("--austen", required=True)
    q.add_argument("--work", required=True)
    q.add_argument("--model", required=True)
    q = s.add_parser("eval")
    q.add_argument("--austen", required=True)
    q.add_argument("--model", required=True)
    args = p.parse_args()
    prepare(args) if args.cmd == "prepare" else build_eval(args.model, args.austen)
