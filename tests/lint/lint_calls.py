"""What library code does not call: the allocator, streams and exits, the environment, clocks, unsafe strings, libm.

A name counts when it is called: followed by "(" and not a member (after "." or "->") and not declared as a function.
Exceptions stand in allowed.txt with their reasons."""

import re

from source import Allowed, Lint, tokens, without_directives

RULES = {
    # rule: (names, folders, what to do instead)
    "memory": (
        "malloc calloc realloc reallocarray free posix_memalign aligned_alloc memalign valloc strdup strndup asprintf "
        "vasprintf getline getdelim alloca",
        ("src",),
        "memory comes from struct quire_env",
    ),
    "print": (
        "printf fprintf vprintf vfprintf dprintf puts fputs putchar fputc putc perror psignal exit _exit _Exit abort "
        "quick_exit atexit err errx warn warnx assert",
        ("src",),
        "library code answers a status, logs through struct quire_env, and never ends the process",
    ),
    "unsafe": (
        "strcpy strcat sprintf vsprintf gets strtok atoi atol atoll atof scanf sscanf stpcpy strncpy tmpnam mktemp "
        "system popen",
        ("src", "tools"),
        "use snprintf, memcpy with a known size, strtoll with its end checked",
    ),
    "rand": (
        "rand srand random srandom drand48 lrand48 rand_r",
        ("src", "tests", "tools"),
        "results depend on seeds only: base/rng.h",
    ),
    "environ": (
        "getenv secure_getenv setenv putenv unsetenv",
        ("src",),
        "the environment is read by the option table",
    ),
    "clock": (
        "clock_gettime gettimeofday time clock ftime",
        ("src",),
        "time comes from struct quire_env",
    ),
}

# words before a name that make it a declaration, not a call
TYPES = {"void", "int", "char", "double", "float", "long", "unsigned", "size_t", "bool", "uint64_t", "int64_t", "*"}

MATH_HEADERS = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<(math|tgmath|complex|fenv)\.h>", re.M)
MATH_BUILTIN = re.compile(
    r"^__builtin_(exp|exp2|exp10|expm1|log|log2|log10|log1p|sin|cos|tan|sincos|pow|sqrt|cbrt|tanh|sinh|cosh|atan|atan2"
    r"|erf|tgamma|lgamma|round|rint|nearbyint|lrint|ldexp|frexp|fmod|hypot)[fl]?$"
)
FLOAT_SWITCHES = re.compile(r"fast-math|FP_CONTRACT|pragma GCC optimize|__attribute__\(\(optimize")


def check_calls(lint, allowed, path, names):
    found = tokens(without_directives(lint.read(path)))
    for before, token, after in zip([None] + found, found, found[1:]):
        if token.kind != "word":
            continue
        if token.text == "environ" and path.startswith("src/") and not allowed.has("environ", path):
            lint.fault(path, token.line, f"environ: {RULES['environ'][2]}")
        if after.text != "(":
            continue
        if before is not None and (before.text in (".", "->") or before.text in TYPES):
            continue
        for rule, advice in names.get(token.text, ()):
            if not allowed.has(rule, path):
                lint.fault(path, token.line, f"{token.text}: {advice}")
        if path.startswith("src/") and MATH_BUILTIN.match(token.text) and not allowed.has("math", path):
            lint.fault(path, token.line, f"{token.text} may become a call of libm")


def check_text(lint, allowed, path):
    text = lint.read(path)
    for match in MATH_HEADERS.finditer(text):
        if not allowed.has("math", path):
            line = text.count("\n", 0, match.start()) + 1
            lint.fault(path, line, f"<{match.group(1)}.h>: libm differs between machines (docs/arithmetic.md)")
    for match in FLOAT_SWITCHES.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        lint.fault(path, line, f"{match.group()}: floating point has one set of rules for all files")


def main():
    lint = Lint()
    allowed = Allowed(lint, set(RULES) | {"math"})
    paths = lint.files(".c", ".h", ".cu", ".cuh", folders=("src", "tests", "tools"))
    for path in paths:
        folder = path.split("/")[0]
        if path.startswith(("src/cli/", "src/bench/")):
            rules = {"unsafe", "rand", "environ"}  # programs print, exit and may use malloc
        else:
            rules = {rule for rule, (_, folders, _) in RULES.items() if folder in folders}
        names = {}
        for rule in rules:
            words, _, advice = RULES[rule]
            for word in words.split():
                names.setdefault(word, []).append((rule, advice))
        check_calls(lint, allowed, path, names)
        if folder == "src" and not path.startswith(("src/cli/", "src/bench/")):
            check_text(lint, allowed, path)
    allowed.report_unused(lint)
    lint.end(len(paths))


main()
