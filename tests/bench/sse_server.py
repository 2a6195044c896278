"""A scripted server of event streams for test_bench_serve.c; prints its port and serves until its standard input ends.

The first part of a path says what it does: /ok streams max_tokens tokens, cut into writes at random places, with
comments between events; the others fail in one way each. Counts of what it saw are at /seen."""

import json
import random
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SEEN = {"requests": 0, "connections": 0, "bodies": [], "running": 0, "running_max": 0}
LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        with LOCK:
            SEEN["connections"] += 1

    def log_message(self, *_):
        pass

    def answer(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path.endswith("/v1/models"):
            self.answer(200, json.dumps({"data": [{"id": 'a "model"'}]}).encode())
        elif self.path == "/seen":
            self.answer(200, json.dumps(SEEN).encode())
        else:
            self.answer(404, b"{}")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with LOCK:
            SEEN["requests"] += 1
            SEEN["bodies"] = [body]
            SEEN["key"] = self.headers.get("Authorization")
            SEEN["running"] += 1
            SEEN["running_max"] = max(SEEN["running_max"], SEEN["running"])
        try:
            getattr(self, "do_" + self.path.split("/")[1])(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            with LOCK:
                SEEN["running"] -= 1

    def events(self, body):
        chat = "messages" in body
        count = body.get("max_completion_tokens") or body.get("max_tokens") or body["sampling_params"]["max_new_tokens"]
        prompt = body.get("prompt") or body.get("input_ids") or body["messages"][0]["content"].split()
        yield b": keep-alive comment\n\n"
        if chat:
            yield event({"choices": [{"delta": {"role": "assistant", "content": ""}}], "usage": None})
        for i in range(count):
            text = '"content":"\\x' if i % 5 == 0 else "漢字"
            if "input_ids" in body:
                yield event(
                    {"text": "x" * (i + 1), "meta_info": {"prompt_tokens": len(prompt), "completion_tokens": i + 1}}
                )
            elif chat and i % 2:
                yield event({"choices": [{"delta": {"reasoning_content": text}}]})
            elif chat:
                yield event({"choices": [{"delta": {"content": text}}]})
            else:
                yield event({"choices": [{"text": text}]})
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": count,
            "prompt_tokens_details": {"cached_tokens": 3},
        }
        if "stream_options" in body:
            yield event({"choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"

    def begin(self, chunked=True):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding" if chunked else "Connection", "chunked" if chunked else "close")
        self.end_headers()

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def do_ok(self, body, pause=0.0):
        self.begin()
        rest = b"".join(self.events(body))
        while rest:
            cut = random.randrange(1, 400)
            self.chunk(rest[:cut])
            rest = rest[cut:]
            time.sleep(pause)
        self.wfile.write(b"0\r\n\r\n")

    def do_slow(self, body):
        self.do_ok(body, 0.01)

    def do_plain(self, body):  # no chunks, no length: the connection's end ends the body
        self.begin(chunked=False)
        for data in self.events(body):
            self.wfile.write(data)
        self.close_connection = True

    def do_forgetful(self, body):  # says it keeps the connection, then closes it
        self.do_ok(body)
        self.close_connection = True

    def do_busy(self, _):
        self.answer(429, b'{"error":{"message":"the queue is full"}}')

    def do_wrong(self, _):
        self.answer(400, b'{"error":{"message":"no such thing"}}')

    def do_broken(self, _):
        self.answer(500, b"{}")

    def do_error(self, _):
        self.begin()
        self.chunk(event({"choices": [{"text": "a"}]}))
        self.chunk(event({"error": {"message": "rank 1 failed", "code": 500}}) + b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def do_truncated(self, _):
        self.begin()
        self.chunk(event({"choices": [{"text": "a"}]}))
        self.wfile.write(b"0\r\n\r\n")

    def do_reset(self, _):
        self.begin()
        self.chunk(event({"choices": [{"text": "a"}]}))
        self.close_connection = True

    def do_badchunk(self, _):
        self.begin()
        self.wfile.write(b"zz\r\n")
        time.sleep(0.2)
        self.close_connection = True

    def do_nohttp(self, _):
        self.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
        self.close_connection = True

    def do_noevents(self, _):
        self.answer(200, b"{}")

    def do_hang(self, _):
        time.sleep(4)
        self.close_connection = True


def event(value):
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


server = Server(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
sys.stdin.read()
