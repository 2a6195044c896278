#!/usr/bin/env python3
"""Makes the tokenizers and test vectors of this folder with Hugging Face's `tokenizers` (any 0.2x from PyPI).

The tests read only what is stored here; run this to make other vectors:  make_vectors.py [folder [tiny GLM]]

    NAME.tokenizer.json     a small byte-level BPE, trained on the sentences below
    NAME.vectors.json       [{"text": ..., "ids": [...], "added": [...]}]; added: with add_special_tokens
    tiny_glm.vectors.json   of a tiny GLM's own tokenizer; the second argument is what `make_tiny DIR --glm` wrote
"""
import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

FOLDER = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))

SENTENCES = """
A quire is a gathering of leaves, and each rank keeps its own leaves; read together they are one book.
The cache is stored once, page by page; every page has one owner, and nothing is read before it is complete.
She said "don't", he said 'I'll see', and they'd have gone if we're honest: it's 12:45 on 2024-03-17, costs $3.50.
for (int i = 0; i < 128; i++) {\n\tsum += x[i] * y[i];\n\tif (sum > 1e6) { return -1; }\n}\n
def attend(q, k, v):\n    scores = q @ k.T / math.sqrt(64)\n    return softmax(scores) @ v\n
Numbers: 1 22 333 4444 55555 666666 7777777, 3.14159, 0x7f, 1,234,567.
Der Schnee fiel die ganze Nacht, und am Morgen war die Straße weiß. Größe, Übung, Äpfel, naïve café.
Снег шёл всю ночь, и утром дорога была белой. Кто читает, тот знает.
雪下了一整夜,早上的路是白的。我们一起读一本书。缓存只存一次。
雪は一晩中降り続き、朝には道が白かった。カタカナとひらがな。
눈이 밤새 내려서 아침 길이 하얗다.
كان الثلج يتساقط طوال الليل. हिमपात पूरी रात होता रहा।
Emoji: 😀 😃 👍🏽 👩‍👩‍👧 🇫🇷 ❤️ and arrows → ⇒ ≤ ≥ ∑ √.
""".replace("\\n", "\n").replace("\\t", "\t")

DEEPSEEK = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
]
GLM = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
]

TEXTS = [
    "", " ", "  ", "\n", "\r\n", " \n ", "\t\t\n\n  x", "a", "Hello, world!", "hello   world",
    "   leading and trailing   ", "1", "12", "123", "1234", "12345678901234567890", "3.14", "٣٤٥ ①② ½ Ⅷ", "v1.2.3-rc4",
    "don't DON'T I'LL we're x's 's", "雪下了一整夜123个页面abc", "ひらがなカタカナ漢字", "一龥鿿㐀", "ーー゛゜", "한국어 텍스트", "Straße GRÖSSE ſ 'ſ",
    "😀😃👍🏽👩‍👩‍👧🇫🇷❤️", "e\u0301\u0301 n\u0303o", "\u00a0\u2003\u3000x\u2028y\u0085z", "\u180ex\u180e y",
    "\u200bzero\u200dwidth\ufeff", "a\u0000b\u0001c", "#include <stdio.h>\nint main(void) { return 0; }\n",
    "x=1;y=2;/*c*/", "___init___ __a_b__", "\\n\\t\\\\", "!a@b#c$d%e^f&g*h(i)j", "...word !!!\n\n\nword ???\r\n",
    "https://example.org/a?b=c&d=%20e#f", "  \n\n  \n x \n", "a\n\nb\r\rc\r\n\r\nd",
    "a" * 120,
    "theinganderstionatheres" * 12, "雪下了一整夜早上的路是白的" * 9, "the " * 40, " " * 100, "\n" * 70, "=" * 90, "\t \t \t" * 30,
    "<|begin|>text<|end|>", "<|begin|><|begin|>", "<|beg", "x<|end|", "<think>why</think>because", "<thinking>",
    "< think>", "<|end|>\n", "<|User|>hi<|Assistant|><think>\n", "a<|User|", "<|a|><|ab|><|abc|><|abcd|>", "<<|a|>>",
    "<|a<|a|>", "[over<lap>]", "x[over<lap>y",
]


def random_text(rng):
    parts = []
    for _ in range(rng.randint(1, 14)):
        kind = rng.randrange(11)
        if kind < 3:
            word = rng.choice(SENTENCES.split())
            parts.append(word[: rng.randint(1, len(word))])
        elif kind == 3:
            parts.append(rng.choice([" ", "  ", "\n", "\r\n", "\t", " \n", "\u3000", "\u00a0", "\n\n\n"]))
        elif kind == 4:
            parts.append(str(rng.randrange(10 ** rng.randint(1, 9))))
        elif kind == 5:
            parts.append("".join(rng.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") for _ in range(rng.randint(1, 4))))
        elif kind == 6:
            parts.append("".join(chr(rng.randrange(0x4E00, 0x9FB0)) for _ in range(rng.randint(1, 4))))
        elif kind == 7:
            parts.append(rng.choice(["<|begin|>", "<|end|>", "<think>", "<|ab|>", "<|User|>", "<|a", "[over<lap>]"]))
        elif kind == 8:
            bands = (0x20, 0x250), (0x370, 0x530)
            parts.append("".join(chr(rng.choice([rng.randrange(*b) for b in bands])) for _ in range(rng.randint(1, 5))))
        elif kind == 9:
            parts.append(rng.choice("😀😃👍❤→∑한가あアéñ") + rng.choice(["", "\u0301", "\ufe0f", "\u200d"]))
        else:
            parts.append(" " + rng.choice(SENTENCES.split()))
    return "".join(parts)


def train(pre, vocab):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, show_progress=False, min_frequency=2,
                                  special_tokens=["<|begin|>", "<|end|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([SENTENCES], trainer)
    tokenizer.add_special_tokens([AddedToken("<|pad|>", special=True, normalized=False)])
    ordinary = ["<|User|>", "<|Assistant|>", "<think>", "</think>", "<|a|>", "<|ab|>", "<|abc|>", "[over<"]
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=True) for t in ordinary])
    tokenizer.add_tokens([AddedToken("<lap>", special=False, normalized=False)])
    return tokenizer


def splits(patterns):
    steps = [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
    return pre_tokenizers.Sequence(steps + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def template(tokenizer, single):
    ids = [(t, tokenizer.token_to_id(t)) for t in ("<|begin|>", "<|end|>")]
    return processors.TemplateProcessing(single=single, special_tokens=ids)


def store_vectors(name, tokenizer, count):
    rng = random.Random(name)
    vectors = []
    for text in TEXTS + [random_text(rng) for _ in range(count)]:
        vectors.append({"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids,
                        "added": tokenizer.encode(text, add_special_tokens=True).ids})
    with open(os.path.join(FOLDER, name + ".vectors.json"), "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(v, separators=(",", ":")) for v in vectors) + "\n]\n")


def store(name, tokenizer, change, count):
    data = json.loads(tokenizer.to_str())
    change(data)
    store_vectors(name, Tokenizer.from_str(json.dumps(data)), count)
    with open(os.path.join(FOLDER, name + ".tokenizer.json"), "w") as file:
        json.dump(data, file, separators=(",", ":"))


def strings(data):
    data["model"]["merges"] = [" ".join(m) if isinstance(m, list) else m for m in data["model"]["merges"]]


def whole_words(data):
    data["model"]["ignore_merges"] = True
    # an entry that merges alone do not reach; added tokens follow the vocabulary without a gap
    vocab = data["model"]["vocab"]
    for token in data["added_tokens"]:
        token["id"] += token["id"] >= len(vocab)
    vocab["Hello"] = len(vocab)


def nothing(data):
    pass


deepseek = train(splits(DEEPSEEK), 700)
store("deepseek", deepseek, strings, 160)
glm = train(splits(GLM), 600)
glm.post_processor = template(glm, "<|begin|> $A <|end|>")
store("glm", glm, whole_words, 120)
plain = train(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True), 500)
plain.post_processor = template(plain, "<|begin|> $A")
store("plain", plain, nothing, 120)
if len(sys.argv) > 2:
    store_vectors("tiny_glm", Tokenizer.from_file(os.path.join(sys.argv[2], "tokenizer.json")), 60)
