"""sglang.bench_serving from PyPI, the load client of SGLang, against quire serve: native, completions and chat.

The wheel is installed without what the engine needs; its package's own start-up, which would load torch, is left out,
and one constant that lies beside torch is named here. Where PyPI is out of reach the test is skipped, in CI it fails.

ctest: timeout=600 labels=slow
"""

import os
import re
import subprocess
import sys
import tempfile

from served_process import Server, mini, skip

SGLANG = "sglang==0.5.23"
NEEDS = [
    "aiohttp", "datasets", "msgspec", "numpy", "orjson", "pillow", "psutil", "pybase64", "pyzmq", "requests", "tqdm",
    "transformers",
]

LAUNCH = """
import sys, types
root = next(path for path in sys.path if path.endswith("site-packages")) + "/sglang"
for name in ("sglang", "sglang.srt", "sglang.srt.utils", "sglang.srt.disaggregation"):
    package = types.ModuleType(name)
    package.__path__ = [root + name[len("sglang"):].replace(".", "/")]
    sys.modules[name] = package
constants = types.ModuleType("sglang.srt.disaggregation.utils")
constants.FAKE_BOOTSTRAP_HOST = "2.2.2.2"
sys.modules[constants.__name__] = constants
import sglang.benchmark.serving
sglang.benchmark.serving.cli_main()
"""


def run(command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


def environment():
    """The Python of a virtual environment with the client."""
    folder = os.path.join(os.environ["QUIRE_TEST_BINARY_DIR"], "load-client")
    python, marker = os.path.join(folder, "bin", "python"), os.path.join(folder, "packages")
    if os.path.exists(marker) and open(marker, encoding="utf-8").read() == " ".join([SGLANG, *NEEDS]):
        return python
    made = run([sys.executable, "-m", "venv", folder])
    if made.returncode != 0:
        skip("no virtual environment can be made (python3-venv): " + made.stdout.strip().split("\n")[0])
    pip = [python, "-m", "pip", "install", "--quiet", "--retries", "1", "--timeout", "20"]
    for packages in (["--no-deps", SGLANG], NEEDS):
        installed = run(pip + packages)
        if installed.returncode != 0:
            skip("PyPI is out of reach: " + (installed.stderr.strip().split("\n") or [""])[-1])
    with open(marker, "w", encoding="utf-8") as file:
        file.write(" ".join([SGLANG, *NEEDS]))
    return python


def main():
    python = environment()
    server = Server("--ranks", "2", "--ctx-tokens", "2048", "--cache-tokens", "16384", "--compat", "sglang")
    for backend in ("sglang", "sglang-oai", "sglang-oai-chat"):
        with tempfile.TemporaryDirectory() as folder:
            command = [python, "-c", LAUNCH, "--backend", backend, "--base-url", server.url, "--model", "quire-mini"]
            command += ["--tokenizer", mini(), "--dataset-name", "random-ids", "--random-input-len", "64"]
            command += ["--random-output-len", "16", "--random-range-ratio", "0.5", "--num-prompts", "40"]
            command += ["--max-concurrency", "8", "--disable-tqdm", "--output-file", os.path.join(folder, "out.jsonl")]
            os.environ.update({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"})
            done = run(command)
            shown = dict(re.findall(r"^([A-Z][^:\n]+):\s+([\d.]+)\s*$", done.stdout, re.M))
            if (
                done.returncode != 0
                or shown.get("Successful requests") != "40"
                or float(shown["Total generated tokens"]) < 320
            ):
                raise AssertionError(f"{backend}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
            print(backend, shown["Successful requests"], "requests,", shown["Request throughput (req/s)"], "a second")
    server.check_empty()
    assert server.end() == 0


main()
