"""The openai package from PyPI against quire serve: whole answers, streams, log-probabilities, n, errors, disconnects.

It is installed into a virtual environment of the build folder. Where PyPI is out of reach the test is skipped, in CI it
fails.

ctest: timeout=400 labels=slow
"""

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
        model="quire-mini", messages=messages, max_completion_tokens=20, seed=5, temperature=0.7, logprobs=True, top_logprobs=3,
        extra_body={"ignore_eos": True},
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
    stopped = client.completions.create(model="quire-mini", prompt="Once upon a time", max_tokens=60, temperature=0, stop=[" the"])
    assert stopped.choices[0].finish_reason == "stop" and " the" not in stopped.choices[0].text


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
    server.ask = lambda method, path, body=None, headers=None: ask(method, path, body, {"x-api-key": "right", **(headers or {})})
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="right", max_retries=0)
    check_chat(client)
    check_completions(client)
    check_errors(openai, client, server)
    check_disconnects(client, server)
    client.close()
    assert server.end() == 0
    print("openai", openai.__version__, "is served")


main()
