"""What a client may ask of sampling, asked over HTTP: seeds, n, biases, penalties, log-probabilities, stops, refusals.

Most answers are checked against the server's own log-probabilities of 20 alternatives, from which greedy answers under
a bias or penalty follow by arithmetic.

ctest: timeout=240 labels=slow
"""

import json
import math
import subprocess

from served_process import Server, mini, program

PROMPT = "Once upon a time, there was a little dog named"
MESSAGES = [{"role": "user", "content": "Tell me of the sea."}]
EOS = 1
CHOICES = 4


def complete(server, **more):
    body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": True, **more}
    return server.post("/v1/completions", body)


def word_of(server):
    """A token and its text."""
    token = ids_of(server, "the big dog")[-1]
    text = server.post("/detokenize", {"tokens": [token]})["text"]
    assert "dog" in text, text
    return token, text.strip()


def generate(server, params=None, **more):
    params = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True, **(params or {})}
    body = {"sampling_params": params, **more}
    if "input_ids" not in more:
        body["text"] = PROMPT
    return server.post("/generate", body)


def ids_of(server, text):
    return server.post("/tokenize", {"prompt": text})["tokens"]


def drawn(server, params=None, **more):
    """Ids, log-probabilities and alternatives {id: log-probability} of one answer."""
    meta = generate(server, params, return_logprob=True, top_logprobs_num=20, **more)["meta_info"]
    tokens = [entry[1] for entry in meta["output_token_logprobs"]]
    values = [entry[0] for entry in meta["output_token_logprobs"]]
    tops = [{entry[1]: entry[0] for entry in row} for row in meta["output_top_logprobs"]]
    assert len(tokens) == len(tops) == meta["completion_tokens"]
    return tokens, values, tops


def check_seeds(server):
    """A seed is an answer; choice i of n has seed + i; no seed is another answer each time."""
    texts = [complete(server, temperature=1, seed=40 + i)["choices"][0]["text"] for i in range(CHOICES)]
    assert len(set(texts)) == CHOICES, texts
    for _ in range(2):
        answer = complete(server, temperature=1, seed=40, n=CHOICES)
        got = {choice["index"]: choice["text"] for choice in answer["choices"]}
        assert [got[i] for i in range(CHOICES)] == texts, (got, texts)
        assert answer["usage"]["completion_tokens"] == 12 * CHOICES
    unseeded = {complete(server, temperature=1.2, max_tokens=24)["choices"][0]["text"] for _ in range(4)}
    assert len(unseeded) == 4, unseeded
    negative = [complete(server, temperature=1, seed=-5)["choices"][0]["text"] for _ in range(2)]
    assert negative[0] == negative[1]


def check_greedy(server):
    """Four ways to say greedy."""
    wanted = complete(server)["choices"][0]["text"]
    for more in ({"top_k": 1}, {"top_p": 0}, {"min_p": 1}, {"top_k": 1, "top_p": 0.5, "min_p": 0.1}):
        for seed in range(3):
            got = complete(server, temperature=1.5, seed=seed, **more)["choices"][0]["text"]
            assert got == wanted, (more, got, wanted)


def check_cuts(server):
    """What is drawn under a cut belongs to what the cut leaves."""
    for seed in range(8):
        tokens, _, tops = drawn(server, {"temperature": 1, "seed": seed, "top_k": 5})
        assert all(token in sorted(top, key=top.get, reverse=True)[:5] for token, top in zip(tokens, tops))
        tokens, values, tops = drawn(server, {"temperature": 1, "seed": seed, "min_p": 0.2})
        for value, top in zip(values, tops):
            assert value >= max(top.values()) + math.log(0.2) - 1e-4
        tokens, values, tops = drawn(server, {"temperature": 1, "seed": seed, "top_p": 0.3})
        for value, top in zip(values, tops):
            assert sum(math.exp(other) for other in top.values() if other > value) < 0.3 + 1e-4


def check_bias(server):
    dog, name = word_of(server)
    tokens, values, _ = drawn(server, {"temperature": 1, "seed": 1, "logit_bias": {str(dog): 100}})
    assert tokens == [dog] * 12
    assert min(values) < -3, values  # the model's own opinion, not the bias'
    plain, _, tops = drawn(server)
    banned = {str(token): -100 for token in set(plain)}
    tokens, _, _ = drawn(server, {"logit_bias": banned})
    assert not set(tokens) & set(plain)
    second = sorted(tops[0], key=tops[0].get, reverse=True)[1]
    assert tokens[0] == next(t for t in sorted(tops[0], key=tops[0].get, reverse=True) if str(t) not in banned)
    gap = tops[0][plain[0]] - tops[0][second]
    for bias, first in ((gap * 0.9, plain[0]), (gap * 1.1, second)):
        assert drawn(server, {"logit_bias": {str(second): bias}})[0][0] == first
    for path, body in (
        ("/v1/completions", {"prompt": PROMPT}),
        ("/v1/chat/completions", {"messages": MESSAGES}),
    ):
        answer = server.post(
            path, {**body, "max_tokens": 3, "logit_bias": {str(dog): 100}, "seed": 2, "ignore_eos": True}
        )
        choice = answer["choices"][0]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        assert text.count(name) == 3, text


def penalised(tokens, tops, presence, frequency, bias):
    """Steps whose greedy token follows from the 20 alternatives; asserts that it was drawn."""
    certain = 0
    for i, top in enumerate(tops):
        before = tokens[:i]

        def value(token):
            count = before.count(token)
            return top[token] - frequency * count - presence * (count > 0) + bias.get(token, 0)

        best = max(top, key=value)
        unseen = min(top.values()) + max(bias.values(), default=0) + max(0, -presence, -presence - 12 * frequency)
        others = [value(token) for token in top if token != best]
        if value(best) > max(others + [unseen]) + 1e-3:
            assert tokens[i] == best, (i, tokens[i], best)
            certain += 1
    return certain


def check_penalties(server):
    plain = drawn(server, {"max_new_tokens": 40})[0]
    for presence, frequency in ((1.5, 0), (0, 0.7), (0.5, 0.5), (2, 2)):
        tokens, _, tops = drawn(
            server, {"max_new_tokens": 40, "presence_penalty": presence, "frequency_penalty": frequency}
        )
        assert penalised(tokens, tops, presence, frequency, {}) >= 20, (presence, frequency)
        assert len(set(tokens)) > len(set(plain))
    tokens, _, _ = drawn(server, {"max_new_tokens": 40, "frequency_penalty": -2})
    assert len(set(tokens)) < len(set(plain)), tokens
    # the prompt counts for the repetition penalty alone
    dog, _ = word_of(server)
    ids = ids_of(server, PROMPT) + [dog] * 8
    for params, changes in (
        ({"presence_penalty": 2}, False),
        ({"frequency_penalty": 2}, False),
        ({"repetition_penalty": 2}, True),
    ):
        first = drawn(server, {"max_new_tokens": 1, "logit_bias": {str(dog): 30}}, input_ids=ids)
        other = drawn(server, {"max_new_tokens": 1, "logit_bias": {str(dog): 30}, **params}, input_ids=ids)
        assert first[0] == other[0] == [dog] and first[1] == other[1]
        free = drawn(server, {"max_new_tokens": 1}, input_ids=ids)
        same = drawn(server, {"max_new_tokens": 1, **params}, input_ids=ids)
        assert free[2] == same[2]  # reported values do not feel it
        assert changes or free[0] == same[0]
    loop = drawn(server, {"max_new_tokens": 40, "repetition_penalty": 1.8})[0]
    assert len(set(loop)) > len(set(plain))


def check_chat_logprobs(server):
    body = {"messages": MESSAGES, "max_tokens": 10, "temperature": 0, "ignore_eos": True}
    plain = server.post("/v1/chat/completions", body)["choices"][0]
    assert plain["logprobs"] is None
    few = server.post("/v1/chat/completions", {**body, "logprobs": True})["choices"][0]["logprobs"]["content"]
    many = server.post("/v1/chat/completions", {**body, "logprobs": True, "top_logprobs": 20})["choices"][0]
    content = many["logprobs"]["content"]
    assert len(few) == len(content) == 10
    spoken = b"".join(bytes(entry["bytes"]) for entry in content).decode()
    message = many["message"]
    assert spoken == (message.get("reasoning_content") or "") + message["content"], (spoken, message)
    for bare, entry in zip(few, content):
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"} == set(bare)
        assert bare["top_logprobs"] == [] and bare["logprob"] == entry["logprob"] < 0
        tops = [top["logprob"] for top in entry["top_logprobs"]]
        assert len(tops) == 20 and tops == sorted(tops, reverse=True)
        assert entry["logprob"] == tops[0] and entry["token"] == entry["top_logprobs"][0]["token"]
        assert 0.2 < sum(math.exp(top) for top in tops) <= 1 + 1e-4
    status, data = server.ask(
        "POST", "/v1/chat/completions", {**body, "logprobs": True, "top_logprobs": 20, "stream": True}
    )
    assert status == 200
    streamed = []
    for line in data.decode().split("\n\n"):
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                streamed += (choice.get("logprobs") or {"content": []})["content"]
    assert streamed == content


def check_completion_logprobs(server):
    """Values of drawn tokens are those of the same tokens as a prompt: decode and prefill have the same bits."""
    answer = complete(server, logprobs=3, temperature=0.9, seed=5, presence_penalty=0.5)["choices"][0]
    got = answer["logprobs"]
    assert set(got) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert len(got["tokens"]) == len(got["token_logprobs"]) == len(got["top_logprobs"]) == len(got["text_offset"]) == 12
    assert all(3 <= len(top) <= 4 for top in got["top_logprobs"])
    bare = complete(server, logprobs=0, temperature=0.9, seed=5, presence_penalty=0.5)["choices"][0]["logprobs"]
    assert bare["token_logprobs"] == got["token_logprobs"] and max(bare["token_logprobs"]) < 0
    prompt = ids_of(server, PROMPT)
    tokens, values, tops = drawn(server, {"temperature": 0.9, "seed": 5, "presence_penalty": 0.5})
    assert values == got["token_logprobs"]
    again = complete(server, prompt=prompt + tokens, echo=True, logprobs=3, max_tokens=1)["choices"][0]["logprobs"]
    assert len(again["tokens"]) == len(prompt) + 13 and again["token_logprobs"][0] is None
    assert again["token_logprobs"][len(prompt) : -1] == values
    assert again["top_logprobs"][0] is None
    for start in (0, 1, len(prompt) - 1, len(prompt) + 11):
        meta = generate(
            server, {"max_new_tokens": 1}, input_ids=prompt + tokens, return_logprob=True, logprob_start_len=start,
            top_logprobs_num=20,
        )["meta_info"]
        scored = meta["input_token_logprobs"]
        assert [entry[1] for entry in scored] == (prompt + tokens)[start:]
        wanted = again["token_logprobs"][start:-1]
        assert [entry[0] for entry in scored] == wanted or (
            scored[0][0] is None and [e[0] for e in scored[1:]] == wanted[1:]
        )
        inputs = [{entry[1]: entry[0] for entry in row or []} for row in meta["input_top_logprobs"]]
        assert inputs[-1] == tops[-1] if start < len(prompt) + 11 else True


def check_temperature_is_not_reported(server):
    """Alternatives of the first token are the model's, whatever is asked."""
    wanted = drawn(server)[2][0]
    for params in (
        {"temperature": 2, "seed": 1},
        {"temperature": 0.3, "top_k": 2, "seed": 1},
        {"repetition_penalty": 1.7},
        {"logit_bias": {"500": 50}},
    ):
        assert drawn(server, params)[2][0] == wanted, params


def check_stops(server):
    dog, name = word_of(server)
    forced = {"logit_bias": {str(dog): 100}, "stop_token_ids": [dog]}
    for shortest in (0, 1, 3):
        for path, body in (
            ("/v1/completions", {"prompt": PROMPT, "min_tokens": shortest, "max_tokens": 12, "seed": 1, **forced}),
            (
                "/v1/chat/completions",
                {"messages": MESSAGES, "min_tokens": shortest, "max_tokens": 12, "seed": 1, **forced},
            ),
            (
                "/generate",
                {"text": PROMPT, "sampling_params": {"min_new_tokens": shortest, "max_new_tokens": 12, **forced}},
            ),
        ):
            answer = server.post(path, body)
            if path == "/generate":
                assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": dog}
                text, count = answer["text"], answer["meta_info"]["completion_tokens"]
            else:
                choice = answer["choices"][0]
                assert choice["finish_reason"] == "stop" and choice["matched_stop"] == dog
                text = choice["text"] if "text" in choice else choice["message"]["content"]
                count = answer["usage"]["completion_tokens"]
            assert count == shortest + 1, (path, shortest, answer)
            assert name not in text.split()
    ended = complete(server, ignore_eos=False, logit_bias={str(EOS): 100})
    assert ended["choices"][0]["finish_reason"] == "stop" and ended["choices"][0]["text"] == ""
    held = complete(server, ignore_eos=False, logit_bias={str(EOS): 100}, min_tokens=5)
    assert held["usage"]["completion_tokens"] == 6 and held["choices"][0]["finish_reason"] == "stop"
    ignored = complete(server, logit_bias={str(EOS): 100})
    assert ignored["usage"]["completion_tokens"] == 12 and ignored["choices"][0]["finish_reason"] == "length"


def check_same_as_run(server):
    """The program's options and the server's fields mean the same."""
    options = "--temperature 0.9 --top-p 0.95 --top-k 60 --min-p 0.02 --presence-penalty 0.4 --frequency-penalty 0.3"
    options += " --repetition-penalty 1.2 --logit-bias 500:3,501:-100 --min-tokens 4 --seed 9 -n 30"
    command = [program(), "run", "--model", mini(), "-p", PROMPT, "-q", *options.split()]
    wanted = subprocess.run(command, check=True, capture_output=True, text=True).stdout.rstrip("\n")
    answer = complete(
        server,
        max_tokens=30,
        ignore_eos=False,
        temperature=0.9,
        top_p=0.95,
        top_k=60,
        min_p=0.02,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        repetition_penalty=1.2,
        logit_bias={"500": 3, "501": -100},
        min_tokens=4,
        seed=9,
    )
    assert answer["choices"][0]["text"].rstrip("\n") == wanted, (answer, wanted)


REFUSED = [
    ("temperature", [-0.1, 100.5, "warm", True, []]),
    ("top_p", [-0.1, 1.01, "x"]),
    ("min_p", [-0.1, 1.01]),
    ("top_k", [-2, 1.5, 1 << 30]),
    ("presence_penalty", [-2.1, 2.1]),
    ("frequency_penalty", [-2.1, 2.1]),
    ("repetition_penalty", [0, -1, 10.5]),
    (
        "logit_bias",
        [[], {"x": 1}, {"-1": 1}, {"999999": 1}, {"5": 101}, {"5": "much"}, {str(i): 1 for i in range(301)}],
    ),
    ("seed", ["a", 0.5]),
    ("n", [0, -1, 1.5, 100000]),
    ("min_tokens", [-1, 13, "few"]),
    ("stop", ["", [""], 5, [5]]),
    ("stop_token_ids", [[-1], [999999], ["a"], 5, list(range(100))]),
    ("logprobs", [21, -1, "yes"]),
    ("max_tokens", [-1, 1.5]),
]


def check_refusals(server):
    for name, values in REFUSED:
        for value in values:
            body = {"prompt": PROMPT, "max_tokens": 12, name: value}
            status, data = server.ask("POST", "/v1/completions", body)
            error = json.loads(data).get("error", {})
            assert status == 400 and error.get("param") == name, (name, value, status, data)
            assert error["type"] == "invalid_request_error" and len(error["message"]) > 10, error
    for name, value in (("top_logprobs", 5), ("top_logprobs", 21), ("logprobs", 3)):
        body = {"messages": MESSAGES, "max_tokens": 2, name: value}
        status, data = server.ask("POST", "/v1/chat/completions", body)
        assert status == 400 and json.loads(data)["error"]["param"] == name, (name, value, data)
    for name in (
        "temperature", "top_p", "logit_bias", "seed", "n", "stop", "logprobs", "min_tokens", "repetition_penalty",
    ):
        assert complete(server, max_tokens=2, **{name: None})["choices"], name


def main():
    server = Server("--ranks", "2", "--ctx-tokens", "2048", "--cache-tokens", "8192")
    for check in (
        check_seeds,
        check_greedy,
        check_cuts,
        check_bias,
        check_penalties,
        check_chat_logprobs,
        check_completion_logprobs,
        check_temperature_is_not_reported,
        check_stops,
        check_same_as_run,
        check_refusals,
    ):
        check(server)
        print(check.__name__, "passed", flush=True)
    server.check_empty()
    assert server.end() == 0


if __name__ == "__main__":
    main()
