"""The built library: its external names begin with quire_, and it refers to nothing that lint_calls.py bans.

This sees what the tokenizer cannot: calls made by macros of others, or by the compiler."""

import os
import shutil
import subprocess

from source import Allowed, Lint

BANNED = {
    "memory": "malloc calloc realloc free posix_memalign aligned_alloc strdup",
    "print": "printf fprintf puts putchar exit abort __assert_fail",
    "environ": "getenv secure_getenv environ",
    "math": "expf exp exp2f exp2 logf log log2f log2 sinf sin cosf cos sincosf powf pow sqrtf sqrt tanhf tanh fmaf fma "
    "roundf round rintf lrintf fmodf ldexpf",
}
RUNTIME = ("__asan", "__ubsan", "__sanitizer", "__sancov", "__odr_asan", "__tsan", "__start_", "__stop_", "_GLOBAL_")


def main():
    lint = Lint()
    build = os.environ.get("QUIRE_TEST_BINARY_DIR", "")
    library = os.path.join(build, "libquire.a")
    if not os.path.exists(library):
        lint.skip("the library is not built, or QUIRE_TEST_BINARY_DIR does not say where")
    if not shutil.which("nm"):
        lint.skip("nm is missing")
    listing = subprocess.run(["nm", "-A", "-g", library], capture_output=True, text=True, check=True).stdout
    sources = {os.path.basename(path) + ".o": path for path in lint.files(".c", folders=("src",))}
    allowed = Allowed(lint, {"memory", "print", "environ", "math"})
    banned = {name: rule for rule, names in BANNED.items() for name in names.split()}
    count = 0
    for row in listing.splitlines():
        where, _, rest = row.partition(".o:")
        path = sources.get(where.rsplit(":", 1)[-1] + ".o")
        words = rest.split()
        if path is None or not words:
            continue
        kind, name = words[-2], words[-1].split("@")[0]
        count += 1
        if kind in "Uw":
            rule = banned.get(name)
            if rule and not allowed.has(rule, path):
                lint.fault(path, 1, f"its object refers to {name} ({rule})")
        elif not name.startswith(("quire_",) + RUNTIME):
            lint.fault(path, 1, f"external name {name} does not begin with quire_")
    if count == 0:
        lint.fault("tests/lint/lint_symbols.py", 1, "no symbol was found in the library")
    lint.end(count)


main()
