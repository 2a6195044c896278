"""quire serve as a process: its output is that of `quire run`, alone and in a crowd; curl; options; signals.

ctest: timeout=240 labels=slow
"""

import concurrent.futures
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

from served_process import Server, mini, program, skip

PROMPT = "It was a bright cold day in the park, and Lily"


def run_text(seed, temperature, tokens, *more):
    command = [program(), "run", "--model", mini(), "-p", PROMPT, "-n", str(tokens), "--seed", str(seed), "-q"]
    command += ["--temperature", str(temperature), "--top-p", "0.9", "--top-k", "50", "--ignore-eos", *more]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.rstrip("\n")


def body(seed, temperature, tokens, **more):
    return {
        "prompt": PROMPT,
        "max_tokens": tokens,
        "seed": seed,
        "temperature": temperature,
        "top_p": 0.9,
        "top_k": 50,
        "ignore_eos": True,
        **more,
    }


def check_same_as_run(server):
    """Law 6 through HTTP: the same seed, the same text, whoever else is served."""
    cases = [(0, 0.0), (7, 0.8), (11, 1.3)]
    wanted = {case: run_text(*case, 40) for case in cases}

    def served(case):
        text = server.post("/v1/completions", body(*case, 40))["choices"][0]["text"]
        return text.rstrip("\n")

    for case in cases:
        assert served(case) == wanted[case], (case, served(case), wanted[case])
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        crowd = [
            pool.submit(
                server.post, "/v1/completions", body(100 + i, 1.0, 20, prompt=f"{PROMPT} {i} " + "far away " * (i % 9))
            )
            for i in range(64)
        ]
        among = [pool.submit(served, case) for case in cases * 2]
        for case, answer in zip(cases * 2, among):
            assert answer.result() == wanted[case], (case, answer.result(), wanted[case])
        for answer in crowd:
            assert answer.result()["usage"]["completion_tokens"] == 20


def check_preempted():
    """The same where the cache is too small for all, so that some give their pages up and come back."""
    server = Server("--ctx-tokens", "512", "--cache-tokens", "1024", "--max-running", "8")
    cases = [(seed, 0.9) for seed in range(20, 28)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(server.post, "/v1/completions", body(*case, 240)) for case in cases]
        texts = [answer.result()["choices"][0]["text"].rstrip("\n") for answer in asked]
    assert server.metric("quire_preempted_total") > 0, "nobody was preempted"
    server.check_empty()
    assert server.end() == 0
    for case, text in zip(cases[:3], texts):
        assert text == run_text(*case, 240), case


def check_chat(server):
    """A stream's pieces are the whole answer's."""
    ask = {
        "messages": [{"role": "user", "content": "Tell me of the sea."}],
        "max_tokens": 30,
        "seed": 3,
        "ignore_eos": True,
    }
    whole = server.post("/v1/chat/completions", ask)["choices"][0]["message"]
    status, data = server.ask("POST", "/v1/chat/completions", {**ask, "stream": True})
    events = [line[6:] for line in data.decode().split("\n\n") if line]
    assert status == 200 and events[-1] == "[DONE]"
    pieces = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events[:-1]]
    assert "".join(pieces) == whole["content"]


def curl(*arguments):
    return subprocess.run(["curl", "-sS", "-m", "60", *arguments], capture_output=True, check=False)


def check_curl(server):
    if shutil.which("curl") is None:
        skip("there is no curl")
    url = server.url
    shown = curl("-i", url + "/health")
    assert shown.returncode == 0 and b"HTTP/1.1 200 OK" in shown.stdout, shown
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        # above 1 KiB curl asks with "Expect: 100-continue"
        json.dump({"prompt": "a b " * 600, "max_tokens": 4, "stream": True}, file)
        file.flush()
        streamed = curl("-N", "--data-binary", "@" + file.name, url + "/v1/completions")
        assert streamed.stdout.endswith(b"data: [DONE]\n\n"), streamed
        chunked = curl("-H", "Transfer-Encoding: chunked", "--data-binary", "@" + file.name, url + "/v1/completions")
        assert chunked.stdout.endswith(b"data: [DONE]\n\n"), chunked
    two = curl("-i", "-H", "Content-Length: 2", "-H", "Content-Length: 3", "-d", "{}", url + "/v1/completions")
    assert b" 400 " in two.stdout.split(b"\r\n")[0], two
    three = curl(url + "/livez", url + "/v1/models", url + "/nowhere")
    assert three.stdout.count(b"{") >= 4, three
    wrong = curl("--http2-prior-knowledge", "-i", url + "/livez")
    assert b"200 OK" not in wrong.stdout, wrong


def check_options():
    """YAML, environment and command line through one table; a dump that reads back; what is wrong is named."""
    with tempfile.TemporaryDirectory() as folder:
        config, keys = os.path.join(folder, "serve.yaml"), os.path.join(folder, "keys")
        with open(keys, "w", encoding="utf-8") as file:
            file.write("# keys\nfirst\n  second  \n")
        with open(config, "w", encoding="utf-8") as file:
            file.write(f"max-running: 3\nctx-tokens: 700\napi_key_file: {keys}\nserved-model-name: from file\n")
        environment = {**os.environ, "QUIRE_MAX_RUNNING": "5"}
        dump = [program(), "serve", "--config", config, "--served-model-name", "x", "--print-config"]
        shown = subprocess.run(dump, capture_output=True, text=True, check=True, env=environment).stdout
        assert "max-running: 5" in shown and "QUIRE_MAX_RUNNING" in shown, shown
        assert "ctx-tokens: 700" in shown and 'served-model-name: "x"' in shown, shown
        server = Server("--config", config, "--log-requests", "--log-format", "json", "--metrics-compat", "vllm")
        assert "700 tokens each, 3 at once" in server.summary, server.summary
        assert "no key" not in server.summary
        assert server.ask("GET", "/v1/models")[0] == 401
        key = {"Authorization": "Bearer second"}
        status, data = server.ask("GET", "/v1/models", headers=key)
        assert status == 200 and json.loads(data)["data"][0]["id"] == "from file", data
        assert b"vllm:num_requests_running{" in server.ask("GET", "/metrics", headers=key)[1]
        asked = server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}, {**key, "X-Request-Id": 'a"b'})
        assert asked[0] == 200, asked
        # a hang-up reads the file again; one that holds no key changes nothing
        with open(keys, "w", encoding="utf-8") as file:
            file.write("third\n")
        server.process.send_signal(signal.SIGHUP)
        third = {"x-api-key": "third"}
        server.settled(lambda: server.ask("GET", "/v1/models", headers=third)[0] == 200, "the new key is not known")
        shown = server.ask("GET", "/v1/models", headers=key)
        assert shown[0] == 401 and json.loads(shown[1])["error"]["code"] == "invalid_api_key", shown
        with open(keys, "w", encoding="utf-8") as file:
            file.write("# none\n")
        server.process.send_signal(signal.SIGHUP)
        server.settled(lambda: any("keys stay as they were" in line for line in server.log), "nobody says so")
        assert server.ask("GET", "/v1/models", headers=third)[0] == 200
        assert server.end(signal.SIGINT) == 0
        lines = [json.loads(line) for line in server.log]
        request = next(line for line in lines if line["msg"] == "request")
        assert request["status"] == 200 and request["client_id"] == "a_b" and request["drawn"] == 1, request
        assert any(line["msg"] == "draining" for line in lines), lines
    for arguments, named in (
        (["--port", "70000"], "port"),
        (["--api-key-file", "/nonexistent"], "/nonexistent"),
        (["--host", "no such host"], "no such host"),
        (["--ctx-tokens", "70000000"], "ctx-tokens"),
        ([], "--model"),
    ):
        model = [] if not arguments else ["--model", mini()]
        port = [] if "--port" in arguments else ["--port", "0"]
        failed = subprocess.run(
            [program(), "serve", *model, *port, *arguments], capture_output=True, text=True, check=False
        )
        assert failed.returncode == 2 and named in failed.stderr, (arguments, failed)


def check_descriptors():
    """A shell's soft limit is raised as far as it may be; 300 connections are held at once."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
    server = Server("--max-connections", "400")
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(300)]
    server.settled(lambda: server.metric("quire_http_connections") >= 300, "connections are not taken")
    for connection in held:
        connection.close()
    assert server.end() == 0


def check_signals():
    """Unready at once, open requests end, exit 0; a second signal ends at once."""
    server = Server("--drain-delay", "0.5", "--ctx-tokens", "4000", "--max-running", "2")
    results = []
    asking = threading.Thread(
        target=lambda: results.append(server.ask("POST", "/v1/completions", body(1, 1.0, 300, stream=True)))
    )
    asking.start()
    server.settled(lambda: server.metric("quire_requests_running") > 0, "the request does not run")
    server.process.send_signal(signal.SIGTERM)
    server.settled(lambda: server.ask("GET", "/readyz")[0] == 503, "still ready")
    assert server.process.wait(60) == 0
    asking.join()
    assert results[0][0] == 200 and results[0][1].endswith(b"data: [DONE]\n\n"), results
    server.end()

    server = Server("--drain-delay", "30", "--max-running", "2")
    begin = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    server.settled(lambda: server.ask("GET", "/readyz")[0] == 503, "still ready")
    assert server.end() == 0 and time.monotonic() - begin < 20


def main():
    server = Server("--ranks", "2", "--ctx-tokens", "2048", "--cache-tokens", "8192", "--max-running", "8")
    assert "refused" in server.summary and "view local" in server.summary, server.summary
    check_same_as_run(server)
    check_chat(server)
    check_curl(server)
    server.check_empty()
    assert server.end() == 0
    check_preempted()
    check_options()
    check_descriptors()
    check_signals()
    print("served text is that of quire run; curl, options and signals as they should be")


main()
