# ctest: timeout=240
"""Every header compiles alone, as C17 and as C++17, without a warning; those private to a folder as C17 only."""

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

from source import Lint

FLAGS = "-D_GNU_SOURCE -march=x86-64-v3 -fsyntax-only -Wall -Wextra -Werror".split()
FLAGS += "-Isrc -Iinclude -Itests -Itests/support -I.".split()
# as cmake/QuireFlags.cmake compiles the files that include them
AVX512 = "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16".split()
PRIVATE = re.compile(r"_(private|internal|state)\.h$")


def compile_alone(lint, command, language, path):
    # included twice: a missing guard shows
    text = f'#include "{path}"\n#include "{path}"\n'
    done = subprocess.run(
        command + FLAGS + (AVX512 if path.endswith("_avx512.h") else []) + ["-x", language, "-"],
        input=text,
        capture_output=True,
        text=True,
        cwd=lint.root,
    )
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), "does not compile")
        return f"{path}:1: not clean alone as {command[1][5:]}: {first}"
    return None


def main():
    lint = Lint()
    cc = os.environ.get("CC", "cc")
    cxx = os.environ.get("CXX", "c++")
    if not shutil.which(cc) or not shutil.which(cxx):
        lint.skip(f"{cc} or {cxx} is missing")
    headers = lint.files(".h", folders=("src", "include"))
    support = lint.files(".h", folders=("tests",))
    jobs = [([cc, "-std=c17"], "c", path) for path in headers + support]
    jobs += [([cxx, "-std=c++17"], "c++", path) for path in headers if not PRIVATE.search(path)]
    with ThreadPoolExecutor(2) as pool:
        for fault in pool.map(lambda job: compile_alone(lint, *job), jobs):
            if fault:
                lint.faults.append(fault)
    lint.end(len(jobs))


main()
