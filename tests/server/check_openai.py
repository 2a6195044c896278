"""The openai package from PyPI against quire serve: whole answers, streams, log-probabilities, n, errors, disconnects,
headers, prompts in every form, 64 streams of an asynchronous client of which some are cancelled.

It is installed into a virtual environment of the build folder. Where PyPI is out of reach the test is skipped, in CI it
fails.

ctest: timeout=400 labels=slow
"""

import asyncio
import os
import subprocess
import sys

from served_process import Server, skip

VERSION = "3.57.0"


def environment():
    """Runs this file again with the Python that has the package."""
    folder = os.path.join(os.environ["QUIRE_TEST_BINARY_DIR"], "clients")
    python = os.path.join(folder, "bin", "python")
    check = [python, "-c", f"import openai; assert openai.__version__ == '{VERSION}'"]
    if not os.path.exists(python) or subprocess.run(check, capture_output=True, check=False).returncode != 0:
        made = subprocess.run([sys.executable, "-m", "venv", folder], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            skip("no virtual environment can be made (python3-venv): " + made.stdout.strip().split("\n")[0])
        install = [python, "-m", "pip", "install", "--quiet", "--retries", "1", "--timeout", "20", f"openai=={VERSION}"]
        installed = subprocess.run(install, capture_output=True, text=True, check=False)
        if installed.returncode != 0:
            skip("PyPI is out of reach: " + (installed.stderr.strip().split("\n") or [""])[-1])
    os.execv(python, [python, "-B", __file__, "inside"])


def check_chat(client):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me of the sea."}]
    whole = client.chat.completions.create(
        model="quire-mini", messages=messages, max_completion_tokens=20, seed=5, temperature=0.7, logprobs=True,
        top_logprobs=3, extra_body={"ignore_eos": True},
    )
    assert whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 20
    assert len(whole.choices[0].logprobs.content) == 20
    for token in whole.choices[0].logprobs.content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob
    stream = client.chat.completions.create(
        model="quire-mini", messages=messages, max_completion_tokens=20, seed=5, temperature=0.7, stream=True,
        stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
    )
    text, usage, roles = "", None, 0
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            roles += choice.delta.role == "assistant"
    assert text == whole.choices[0].message.content and usage.total_tokens == whole.usage.total_tokens and roles == 1


def check_completions(client):
    whole = client.completions.create(
        model="quire-mini", prompt=["Once upon", "The old"], n=2, max_tokens=8, seed=9, logprobs=2, echo=True,
        extra_body={"ignore_eos": True},
    )
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert whole.choices[0].text.startswith("Once upon") and whole.choices[2].text.startswith("The old")
    for choice in whole.choices:
        assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == len(choice.logprobs.text_offset)
        assert choice.logprobs.token_logprobs[0] is None and choice.logprobs.top_logprobs[0] is None
        assert len(choice.logprobs.top_logprobs[1]) >= 1
    joined = {}
    for chunk in client.completions.create(
        model="quire-mini", prompt="Once upon", n=3, max_tokens=8, seed=9, stream=True, extra_body={"ignore_eos": True}
    ):
        for choice in chunk.choices:
            joined[choice.index] = joined.get(choice.index, "") + choice.text
    alone = client.completions.create(
        model="quire-mini", prompt="Once upon", max_tokens=8, seed=10, extra_body={"ignore_eos": True}
    )
    assert len(joined) == 3 and joined[1] == alone.choices[0].text
    stopped = client.completions.create(
        model="quire-mini", prompt="Once upon a time", max_tokens=60, temperature=0, stop=[" the"]
    )
    assert stopped.choices[0].finish_reason == "stop" and " the" not in stopped.choices[0].text


def check_stream_logprobs(client):
    """What a stream says of log-probabilities is, joined, what the answer says; the usage chunk has no choices."""
    ask = {"model": "quire-mini", "max_tokens": 24, "seed": 4, "temperature": 0.8, "extra_body": {"ignore_eos": True}}
    chat = {**ask, "messages": [{"role": "user", "content": "Tell me."}], "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**chat)
    tokens, usages = [], []
    for chunk in client.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True}):
        assert usages == [] and (len(chunk.choices) == 1) == (chunk.usage is None)
        usages += [chunk.usage] if chunk.usage else []
        for choice in chunk.choices:
            tokens += choice.logprobs.content if choice.logprobs else []
    assert tokens == whole.choices[0].logprobs.content and len(tokens) == 24
    spoken = bytes(b for token in tokens for b in token.bytes).decode(errors="replace")
    assert spoken.startswith(whole.choices[0].message.content[:8])
    assert len(usages) == 1 and usages[0].completion_tokens == 24
    assert usages[0].prompt_tokens == whole.usage.prompt_tokens
    text = {**ask, "prompt": "Once upon", "logprobs": 2, "n": 2}
    whole = client.completions.create(**text)
    joined = [{"text": "", "tokens": [], "token_logprobs": [], "text_offset": []} for _ in range(2)]
    for chunk in client.completions.create(**text, stream=True):
        assert chunk.usage is None
        for choice in chunk.choices:
            joined[choice.index]["text"] += choice.text
            for name in ("tokens", "token_logprobs", "text_offset"):
                joined[choice.index][name] += getattr(choice.logprobs, name) if choice.logprobs else []
    for choice in whole.choices:
        assert joined[choice.index] == {
            "text": choice.text, "tokens": choice.logprobs.tokens, "token_logprobs": choice.logprobs.token_logprobs,
            "text_offset": choice.logprobs.text_offset,
        }
    assert whole.usage.completion_tokens == 48


def check_prompts(client, server):
    """Text, tokens and lists of them; stops as a word and as a list; the same seed, the same answer and fingerprint."""
    create = lambda **more: client.completions.create(  # noqa: E731
        model="quire-mini", **{"max_tokens": 10, "seed": 7, "extra_body": {"ignore_eos": True}, **more}
    )
    ids = server.post("/tokenize", {"prompt": "Once upon a time"})["tokens"]
    other = server.post("/tokenize", {"prompt": "The sea"})["tokens"]
    by_text, by_ids, again = create(prompt="Once upon a time"), create(prompt=ids), create(prompt=ids)
    assert by_text.choices[0].text == by_ids.choices[0].text == again.choices[0].text
    assert by_text.system_fingerprint == again.system_fingerprint and by_text.system_fingerprint
    assert by_ids.usage.prompt_tokens == len(ids)
    batch = create(prompt=[ids, other], n=2)
    assert [choice.index for choice in batch.choices] == [0, 1, 2, 3]
    assert batch.choices[0].text == by_ids.choices[0].text
    assert batch.choices[2].text == create(prompt="The sea").choices[0].text
    assert batch.usage.prompt_tokens == len(ids) + len(other) and batch.usage.completion_tokens == 40
    assert create(prompt=ids, echo=True).choices[0].text == "Once upon a time" + by_ids.choices[0].text
    assert create(prompt="Once upon a time", echo=True, max_tokens=0).choices[0].text == "Once upon a time"
    text = create(prompt=ids, max_tokens=40).choices[0].text
    stop = text[12:15]
    for form in (stop, [stop], ["never in it", stop]):
        cut = create(prompt=ids, max_tokens=40, stop=form)
        assert cut.choices[0].finish_reason == "stop" and cut.choices[0].text == text[: text.index(stop)], (cut, text)
        streamed = "".join(
            c.text for chunk in create(prompt=ids, max_tokens=40, stop=form, stream=True) for c in chunk.choices
        )
        assert streamed == cut.choices[0].text
    assert (
        create(prompt=ids, seed=8, temperature=1.5).choices[0].text
        != create(prompt=ids, seed=9, temperature=1.5).choices[0].text
    )


def check_sharing(client, server):
    """Of n answers one computes the prompt; the others compute what is behind its last whole page."""
    ids = [5 + i * 37 % 1000 for i in range(1000)]
    before = server.metric("quire_prefill_rows_total")
    answer = client.completions.create(
        model="quire-mini", prompt=ids, n=8, max_tokens=4, seed=1, extra_body={"ignore_eos": True}
    )
    rows = server.metric("quire_prefill_rows_total") - before
    assert rows <= 1000 + 7 * 64, f"{rows} rows for one prompt of 1,000 tokens and 8 answers"
    assert answer.usage.prompt_tokens == 1000 and answer.usage.completion_tokens == 32
    assert answer.usage.prompt_tokens_details.cached_tokens == 0, "followers' pages are no hits of the request"
    again = client.completions.create(
        model="quire-mini", prompt=ids, n=8, max_tokens=4, seed=1, extra_body={"ignore_eos": True}
    )
    assert [choice.text for choice in again.choices] == [choice.text for choice in answer.choices]
    assert again.usage.prompt_tokens_details.cached_tokens == 960


def check_headers(openai, client):
    raw = client.chat.completions.with_raw_response.create(
        model="quire-mini",
        messages=[{"role": "user", "content": "Hi"}],
        max_tokens=2,
        extra_headers={"X-Request-Id": "mine-1"},
    )
    assert raw.headers["x-request-id"] == "mine-1" and raw.headers["content-type"] == "application/json"
    assert raw.parse().usage.completion_tokens <= 2
    plain = client.completions.create(model="quire-mini", prompt="a", max_tokens=1)
    assert plain._request_id == plain.id  # pylint: disable=protected-access
    with client.completions.with_streaming_response.create(
        model="quire-mini", prompt="a", max_tokens=2, stream=True
    ) as raw:
        assert raw.headers["content-type"].startswith("text/event-stream")
        assert raw.headers["cache-control"] == "no-cache"
        assert list(raw.iter_lines())[-2:] == ["data: [DONE]", ""]
    try:
        client.completions.create(model="quire-mini", prompt="a", temperature=9)
    except openai.BadRequestError as error:
        assert error.request_id and error.request_id.startswith("cmpl-"), error.request_id


async def crowd(openai, server):
    """64 streams at once; every fourth is left in the middle; the others are what they are alone."""
    client = openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="right", max_retries=0, timeout=240)

    async def ask(number):
        stream = await client.chat.completions.create(
            model="quire-mini", messages=[{"role": "user", "content": f"Story {number % 8}."}],
            max_completion_tokens=24, seed=number % 8, stream=True, extra_body={"ignore_eos": True},
        )
        text, finish = "", None
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            finish = chunk.choices[0].finish_reason or finish
            if number % 4 == 3 and len(text) > 4:
                await stream.close()
                return None
        assert finish == "length"
        return text

    async def cancelled(number):
        task = asyncio.create_task(ask(number))
        await asyncio.sleep(0.02 * number)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    texts, _ = await asyncio.gather(
        asyncio.gather(*(ask(number) for number in range(64))),
        asyncio.gather(*(cancelled(number) for number in range(8))),
    )
    alone = [await ask(number) for number in (0, 1, 2, 4, 5, 6)]
    for number, text in enumerate(texts):
        assert text is None if number % 4 == 3 else text == alone[(0, 1, 2, 4, 5, 6).index(number % 8)], (number, text)
    await client.close()


def raises(kind, status, call, **arguments):
    try:
        call(**arguments)
    except kind as error:
        assert error.status_code == status and error.body["message"], error
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def check_errors(openai, client, server):
    create = client.completions.create
    raises(openai.NotFoundError, 404, create, model="other", prompt="a")
    error = raises(openai.BadRequestError, 400, create, model="quire-mini", prompt="a", temperature=-1)
    assert error.body["param"] == "temperature" and error.body["type"] == "invalid_request_error"
    raises(openai.BadRequestError, 400, create, model="quire-mini", prompt="a", max_tokens=10**6)
    raises(openai.BadRequestError, 400, create, model="quire-mini", prompt="", max_tokens=1)
    error = raises(openai.BadRequestError, 400, create, model="quire-mini", prompt="a", max_tokens=10**6)
    assert "together" in error.body["message"]
    error = raises(openai.BadRequestError, 400, create, model="quire-mini", prompt="a", suffix="b")
    assert error.body["param"] == "suffix" and "continued" in error.body["message"]
    chat = {"model": "quire-mini", "messages": [{"role": "user", "content": "a"}]}
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    for param, words, more in (
        ("response_format", "ask for it in the prompt", {"response_format": {"type": "json_object"}}),
        (
            "response_format",
            "only",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
        ),
        ("tools", "leave tools out", {"tools": [tool]}),
        ("tools", "leave tools out", {"tools": [tool], "tool_choice": "required"}),
        ("tool_choice", "only", {"tool_choice": "required"}),
        ("top_logprobs", "logprobs", {"top_logprobs": 2}),
        ("n", "1 to 256", {"n": 1000}),
    ):
        error = raises(openai.BadRequestError, 400, client.chat.completions.create, **chat, **more)
        assert words in error.body["message"] and error.body["param"] == param, error.body
        raises(openai.BadRequestError, 400, client.chat.completions.create, **chat, **more, stream=True)
    stranger = openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0)
    raises(openai.AuthenticationError, 401, stranger.models.list)
    assert client.models.list().data[0].id == "quire-mini"
    assert client.models.retrieve("quire-mini").id == "quire-mini"


def check_disconnects(client, server):
    """Streams that are left in the middle, and one before its first token."""
    before = server.metric("quire_disconnects_total")
    for taken in (0, 1, 5):
        stream = client.completions.create(
            model="quire-mini", prompt="Once upon a time", max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
        )
        for number, _ in enumerate(stream):
            if number >= taken:
                break
        stream.close()
    server.settled(lambda: server.metric("quire_disconnects_total") == before + 3, "disconnects are not seen")
    server.check_empty()


def main():
    if len(sys.argv) < 2:
        environment()
    import openai  # pylint: disable=import-error,import-outside-toplevel

    server = Server("--ranks", "2", "--ctx-tokens", "2048", "--cache-tokens", "8192", "--api-key", "right")
    ask = server.ask
    server.ask = lambda method, path, body=None, headers=None: ask(
        method, path, body, {"x-api-key": "right", **(headers or {})}
    )
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="right", max_retries=0)
    check_chat(client)
    check_completions(client)
    check_stream_logprobs(client)
    check_prompts(client, server)
    check_sharing(client, server)
    check_headers(openai, client)
    check_errors(openai, client, server)
    asyncio.run(crowd(openai, server))
    server.check_empty()
    check_disconnects(client, server)
    client.close()
    assert server.end() == 0
    print("openai", openai.__version__, "is served")


main()
