"""Clients that mean no good, against quire serve: whatever they send, or do not, the server answers others and loses
nothing.

  mutated   requests of every route with bytes changed, cut, doubled, mixed; sent in pieces; reset at random bytes
  half      bodies that stop in the middle, heads that trickle in, answers that nobody reads
  idle      thousands of idle connections; a table of descriptors that is full (ulimit -n)
  stopped   the server is stopped and goes on; a rank process is killed, idle and under load

A canary request must give the same answer after every round. Run it on a build with sanitizers, and for longer:
QUIRE_TEST_SECONDS=120. The seed is printed; QUIRE_TEST_SEED gives it back.

ctest: timeout=300 labels=slow
"""

import json
import os
import random
import re
import resource
import signal
import socket
import struct
import subprocess
import threading
import time

from served_process import Server

SECONDS = float(os.environ.get("QUIRE_TEST_SECONDS", "8"))
SEED = int(os.environ.get("QUIRE_TEST_SEED", str(random.SystemRandom().getrandbits(32))))
ROUTES = (
    "/v1/chat/completions", "/v1/completions", "/generate", "/tokenize", "/detokenize", "/abort_request",
    "/flush_cache",
)
GETS = (
    "/health", "/health_generate", "/metrics", "/v1/models", "/v1/loads", "/server_info", "/debug/check", "/nowhere",
    "*",
)
WORDS = (
    b"null", b"-1", b"1e999", b"1e308", b"99999999999999999999", b"\"\\ud800\"", b"\"\\u0000\"", b"[[[[", b"{}", b"[]",
    b"true", b"\"\"", b"\xff\xfe", b"\r\n", b"\n\n", b"\0", b"0x10", b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 5\r\n", b"%00", b"/../", b"Expect: 100-continue\r\n", b"0\r\n\r\n", b"fffffffff\r\n", b",", b":",
    b"\"stream\":true,", b"\"n\":3,", b"\"logprobs\":true,", b"\"echo\":true,", b"\"max_tokens\":0,",
    b"\"stop\":[\"a\",\"e\"],",
)


def good_body(dice):
    body = {"max_tokens": dice.randint(1, 12), "stream": dice.random() < 0.5, "seed": 1}
    if dice.random() < 0.4:
        body["messages"] = [
            {"role": dice.choice(("user", "system", "assistant")), "content": "tell me " * dice.randint(1, 20)}
        ]
        body["logprobs"] = dice.random() < 0.3
    else:
        prompt = dice.choice(("once upon", ["a", "b c"], [5, 6, 7], [[1], [2, 3]]))
        body.update({"prompt": prompt, "logprobs": dice.choice((None, 2)), "echo": dice.random() < 0.3})
        body.update({"text": "once"} if isinstance(prompt, str) else {"input_ids": [7, 8, 9]})
    body.update(
        dice.choice(
            ({}, {"n": 2}, {"temperature": 0.5, "top_p": 0.9}, {"tokens": [1, 2]}, {"rid": "x"}, {"min_tokens": 4})
        )
    )
    return json.dumps(body).encode()


def request(dice):
    if dice.random() < 0.2:
        method = dice.choice(("GET", "HEAD", "OPTIONS", "DELETE"))
        return f"{method} {dice.choice(GETS)} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
    body = good_body(dice)
    head = f"POST {dice.choice(ROUTES)} HTTP/1.{dice.choice('0111')}\r\nHost: a\r\n"
    if dice.random() < 0.3:
        cut = dice.randint(1, len(body) - 1)
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (body[:cut], body[cut:]))
        return head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


def mutate(dice, data):
    data = bytearray(data)
    for _ in range(dice.choice((0, 1, 1, 2, 4, 16))):
        at = dice.randrange(len(data) + 1)
        kind = dice.randrange(5)
        if kind == 0 and at < len(data):
            data[at] = dice.randrange(256)
        elif kind == 1:
            data[at:at] = dice.choice(WORDS)
        elif kind == 2:
            del data[at : at + dice.randint(1, 20)]
        elif kind == 3:
            data[at:at] = data[at : at + dice.randint(1, 60)]
        else:
            data[at : at + dice.randint(0, 8)] = dice.choice(WORDS)
    return bytes(data)


def reset(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def hostile(port, dice, until):
    """Requests with faults in them on one connection after the other."""
    count = 0
    while time.monotonic() < until:
        count += 1
        connection = socket.create_connection(("127.0.0.1", port))
        connection.settimeout(dice.choice((0.001, 0.02, 0.3)))
        try:
            data = b"".join(mutate(dice, request(dice)) for _ in range(dice.choice((1, 1, 1, 2, 5))))
            sent = 0
            while sent < len(data):
                step = len(data) if dice.random() < 0.7 else dice.randint(1, 40)
                sent += connection.send(data[sent : sent + step])
                if dice.random() < 0.02:
                    break
            if dice.random() < 0.1:
                connection.shutdown(socket.SHUT_WR)
            for _ in range(dice.choice((0, 1, 3, 30))):
                if not connection.recv(dice.choice((10, 4096))):
                    break
        except OSError:
            pass
        if dice.random() < 0.4:
            reset(connection)
        else:
            connection.close()
    return count


def canary(server):
    return server.post(
        "/v1/completions", {"prompt": "Once upon a time", "max_tokens": 12, "seed": 3, "ignore_eos": True}
    )["choices"]


def resident_mb(server):
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as file:
        return int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1)) / 1024


def check_mutated(server, seconds):
    wanted = canary(server)
    counts, before = [], None
    until = time.monotonic() + seconds
    for part in range(4):
        end = until - seconds * (3 - part) / 4
        threads = [
            threading.Thread(
                target=lambda seed: counts.append(hostile(server.port, random.Random(seed), end)),
                args=(f"{SEED} {part} {i}",),
            )
            for i in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert server.process.poll() is None, "".join(server.log)
        server.check_empty()
        assert canary(server) == wanted
        before = before or resident_mb(server)
    print(sum(counts), "hostile connections; resident memory grew by", round(resident_mb(server) - before, 1), "MB")


def check_half(server):
    """Who stops in the middle is waited for as long as the limits say, and holds nobody up."""
    wanted = canary(server)
    held = []
    for i in range(300):
        connection = socket.create_connection(("127.0.0.1", server.port))
        if i % 3 == 0:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 30000\r\n\r\n" + b"[" * (i * 10)
            )
        elif i % 50 != 2:
            connection.sendall(b"GET /livez HTTP/1.1\r\nHo")
        else:
            body = b'{"prompt":"a","max_tokens":1900,"ignore_eos":true,"stream":true,"logprobs":20}'
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
        held.append(connection)
    assert server.ask("GET", "/livez")[0] == 200
    server.settled(lambda: server.metric("quire_http_connections") <= 1, "half-open clients are kept", 100)
    for connection in held:
        connection.close()
    server.check_empty()
    assert canary(server) == wanted


def check_idle(server):
    """2,000 connections that say nothing: others are served, and the memory of each is small."""
    before = resident_mb(server)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit[1], 4096), limit[1]))
    held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2000)]
    server.settled(lambda: server.metric("quire_http_connections") >= 2000, "connections are not taken")
    canary(server)
    each = (resident_mb(server) - before) * 1024 / 2000
    print(f"an idle connection holds {each:.1f} KB")
    for connection in held:
        connection.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    server.settled(lambda: server.metric("quire_http_connections") <= 1, "connections are kept")


def check_stopped(server):
    """Stopped and let go on, the server answers what came meanwhile."""
    wanted = canary(server)
    server.process.send_signal(signal.SIGSTOP)
    answers = []
    asking = [threading.Thread(target=lambda: answers.append(canary(server))) for _ in range(8)]
    for thread in asking:
        thread.start()
    time.sleep(1)
    server.process.send_signal(signal.SIGCONT)
    for thread in asking:
        thread.join()
    assert answers == [wanted] * 8
    server.settled(lambda: server.ask("GET", "/health")[0] == 200, "not well after it was stopped")


def ticks(server):
    """Processor time of the server, in hundredths of a second."""
    with open(f"/proc/{server.process.pid}/stat", encoding="ascii") as file:
        return sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13]))


def check_descriptors():
    """A table of 64 descriptors that is full: who waits is served when others leave."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    server = Server("--ctx-tokens", "512", "--max-connections", "16")
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (64, before[1]))
    held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(14)]
    assert server.ask("GET", "/livez")[0] == 200
    for connection in held:
        connection.close()
    assert server.end() == 0
    server = Server("--ctx-tokens", "512")
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (64, before[1]))
    held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
    results = []
    waiting = threading.Thread(target=lambda: results.append(canary(server)))
    waiting.start()
    time.sleep(0.5)
    begin = ticks(server)
    time.sleep(1)
    spent = ticks(server) - begin
    assert spent < 40, f"{spent} of 100 ticks are spent on a full table"
    assert not results
    for connection in held:
        connection.close()
    waiting.join()
    assert len(results) == 1
    assert server.end() == 0


def children(server):
    shown = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(server.process.pid)], capture_output=True, text=True, check=True
    )
    return [int(word) for word in shown.stdout.split()]


def check_ranks():
    """A rank process that is killed: idle, it is missed at once; under load, every client hears of it. One that hangs
    makes the server ill, and well again when it goes on."""
    for busy in (False, True):
        server = Server("--executor", "proc", "--ranks", "2", "--ctx-tokens", "2048")
        ranks = children(server)
        assert len(ranks) == 2, ranks
        answers = []
        ask = {"prompt": "Once", "max_tokens": 2000, "ignore_eos": True}
        asking = [
            threading.Thread(
                target=lambda stream: answers.append(server.ask("POST", "/v1/completions", {**ask, "stream": stream})),
                args=(s,),
            )
            for s in (False, True) * 4
        ]
        if busy:
            for thread in asking:
                thread.start()
            server.settled(lambda: server.metric("quire_requests_running") >= 8, "the requests do not run")
        os.kill(ranks[0], signal.SIGKILL)
        server.settled(lambda: server.ask("GET", "/health")[0] == 503, "a dead rank is not missed")
        if busy:
            for thread in asking:
                thread.join()
            whole = [status for status, data in answers if b"data: " not in data]
            streams = [data for _, data in answers if b"data: " in data]
            assert len(answers) == 8 and all(status == 500 for status in whole), answers
            for data in streams:
                assert b'"type":"server_error"' in data and data.endswith(b"data: [DONE]\n\n"), answers
        assert server.ask("POST", "/v1/completions", {"prompt": "a"})[0] == 503
        assert server.ask("GET", "/health_generate")[0] == 503 and server.ask("GET", "/livez")[0] == 200
        server.end()
    server = Server("--executor", "proc", "--ranks", "2", "--ctx-tokens", "2048", "--health-seconds", "0.5")
    wanted = canary(server)
    ranks = children(server)
    os.kill(ranks[1], signal.SIGSTOP)
    assert server.ask("GET", "/health")[0] == 200
    assert server.ask("GET", "/health_generate")[0] == 503 and server.ask("GET", "/health")[0] == 503
    os.kill(ranks[1], signal.SIGCONT)
    server.settled(lambda: server.ask("GET", "/health")[0] == 200, "not well when the rank goes on")
    assert server.ask("GET", "/health_generate")[0] == 200 and canary(server) == wanted
    server.check_empty()
    # a second signal ends the server also while a rank hangs, and its clients hear of it
    answers = []
    asking = threading.Thread(target=lambda: answers.append(server.ask("POST", "/v1/completions", {"prompt": "Once"})))
    os.kill(ranks[1], signal.SIGSTOP)
    asking.start()
    server.settled(lambda: server.metric("quire_requests_open") == 1, "the request does not come")
    server.process.send_signal(signal.SIGTERM)
    server.settled(lambda: server.ask("GET", "/livez")[0] == 200, "no longer alive")
    begin = time.monotonic()
    assert server.end() == 0 and time.monotonic() - begin < 4
    asking.join()
    assert answers[0][0] == 503 and b"shutting_down" in answers[0][1], answers
    server.settled(
        lambda: not any(os.path.exists(f"/proc/{rank}/fd/0") for rank in ranks), "ranks outlive their server"
    )


def main():
    print(f"QUIRE_TEST_SEED={SEED}")
    limits = (
        "--head-seconds", "1", "--body-seconds", "1", "--write-seconds", "1.5", "--max-body", "1M", "--max-bodies",
        "64M",
    )
    server = Server(
        "--ranks", "2", "--ctx-tokens", "2048", "--cache-tokens", "8192", "--max-running", "8", "--queue", "400",
        *limits,
    )
    check_mutated(server, SECONDS)
    check_half(server)
    check_idle(server)
    check_stopped(server)
    assert server.end() == 0, server.log[-20:]
    check_descriptors()
    check_ranks()


main()
