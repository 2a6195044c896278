"""The lints find what they are for: each is run on a small tree with one fault, and must name its place."""

import os
import subprocess
import sys
import tempfile

from source import Lint, functions

GOOD_HEADER = "#ifndef QUIRE_POOL_X_H\n#define QUIRE_POOL_X_H\nint quire_x(int a);\n#endif\n"

# lint, {path: text}, what it must say ("" for a clean tree)
CASES = [
    ("floors", {"src/pool/x.h": GOOD_HEADER, "src/pool/x.c": '#include "pool/x.h"\n'}, ""),
    (
        "floors",
        {"src/pool/x.c": '\n#include "radix/y.h"\n', "src/radix/y.h": ""},
        "src/pool/x.c:2: pool may not include",
    ),
    ("floors", {"src/pool/x.c": '#include "pool/y.h"\n'}, "src/pool/x.c:1: there is no src/pool/y.h"),
    ("floors", {"src/pool/x.c": '#include "x.h"\n'}, 'src/pool/x.c:1: write "folder/file.h"'),
    ("floors", {"src/pool/x.c": '#include "../base/y.h"\n'}, 'src/pool/x.c:1: write "folder/file.h"'),
    ("floors", {"src/new/x.c": ""}, 'src/new/x.c:1: folder "new" has no row'),
    ("floors", {"src/pool/x.c": "#include <yaml.h>\n"}, "src/pool/x.c:1: <yaml.h> is wrapped"),
    (
        "floors",
        {"src/view/x.c": '#include "kernels/cpu/y.h"\n', "src/kernels/cpu/y.h": ""},
        "src/view/x.c:1: \"kernels/cpu/y.h\" is private to kernels",
    ),
    (
        "floors",
        {"src/pool/x.h": '#include "pool/y.h"\n', "src/pool/y.h": '#include "pool/x.h"\n'},
        "src/pool/x.h:1: include cycle: src/pool/x.h -> src/pool/y.h -> src/pool/x.h",
    ),
    ("floors", {"include/quire/q.h": '#include "base/x.h"\n'}, "include/quire/q.h:1: a public header"),
    ("headers", {"src/pool/x.h": GOOD_HEADER}, ""),
    ("headers", {"src/pool/x.h": "size_t quire_x(void);\n"}, "src/pool/x.h:1: not clean alone as c17"),
    ("headers", {"src/pool/x.h": "struct x { int a; };\n"}, "src/pool/x.h:1: not clean alone as c17"),
    ("headers", {"src/pool/x.h": GOOD_HEADER.replace("a)", "class)")}, "src/pool/x.h:1: not clean alone as c++17"),
    ("size", {"src/pool/x.h": "\n" * 399}, "1 faults"),  # no function anywhere
    ("size", {"src/pool/x.c": "int f(void) {\n" + "\n" * 67 + "}\n"}, ""),
    ("size", {"src/pool/x.c": "int f(void) {\n" + "\n" * 68 + "}\n"}, "src/pool/x.c:1: f has 70 lines"),
    (
        "size",
        {"src/pool/x.c": "static int *f(int a,\nint b) {\n" + "{ }\n" * 67 + "}\n"},
        "src/pool/x.c:1: f has 70 lines",
    ),
    ("size", {"src/pool/x.h": "int f(void);\n" + "\n" * 399}, "src/pool/x.h:400: 400 lines"),
    ("size", {"src/pool/x.c": "int f(void);\n" + "\n" * 1199}, "src/pool/x.c:1200: 1200 lines"),
    ("size", {"src/pool/x.c": "int f(int a, int b, int c, int d, int e, int g);\n"}, ""),
    (
        "size",
        {"src/pool/x.c": "int f(int a, int (*b)(int, int), int c, int d, int e, int g, int h);\n"},
        "src/pool/x.c:1: f has 7 parameters",
    ),
    ("calls", {"src/pool/x.c": "void f(void) {\n  char *p = malloc(3);\n}\n"}, "src/pool/x.c:2: malloc"),
    ("calls", {"src/pool/x.c": "void f(void) { /* malloc(3) */ x = \"free(\"; y->free(3); y.free(1); }\n"}, ""),
    ("calls", {"src/cli/x.c": "void f(void) { printf(\"a\"); exit(1); }\n"}, ""),
    ("calls", {"src/pool/x.c": "void f(void) { return exit(1); }\n"}, "src/pool/x.c:1: exit"),
    ("calls", {"src/cli/x.c": "void f(void) { strcpy(a, b); }\n"}, "src/cli/x.c:1: strcpy"),
    ("calls", {"tests/x.c": "void f(void) { int a = rand(); }\n"}, "tests/x.c:1: rand"),
    ("calls", {"src/pool/x.c": "void f(void) { a = getenv(b); }\n"}, "src/pool/x.c:1: getenv"),
    ("calls", {"src/pool/x.c": "void f(void) { a = environ; }\n"}, "src/pool/x.c:1: environ"),
    ("calls", {"src/pool/x.c": "void f(void) { a = clock_gettime(b, c); }\n"}, "src/pool/x.c:1: clock_gettime"),
    ("calls", {"src/kernels/x.c": "#include <math.h>\n"}, "src/kernels/x.c:1: <math.h>"),
    ("calls", {"src/kernels/x.c": "float f(float a) { return __builtin_expf(a); }\n"}, "__builtin_expf"),
    ("calls", {"src/kernels/x.c": '#pragma GCC optimize("fast-math")\n'}, "one set of rules"),
    ("calls", {"src/base/env.c": "void f(void) { a = malloc(b); }\n", "@": "memory src/base/env.c why\n"}, ""),
    ("calls", {"@": "memory src/base/env.c why\n"}, "tests/lint/allowed.txt:1: the exception"),
    ("calls", {"@": "memory src/base/env.c\n"}, "tests/lint/allowed.txt:1: an exception is"),
    (
        "golden",
        {"src/layout/x.h": "struct quire_x {\n  int a;\n};\n"},
        "src/layout/x.h:1: struct quire_x has no static_assert",
    ),
    ("golden", {"src/layout/x.h": 'struct quire_x {\n};\nstatic_assert(sizeof(struct quire_x) ==\n 4, "");\n'}, ""),
    ("golden", {"src/layout/x.h": "struct quire_x {\n};\n", "@": "size src/layout/x.h:quire_x why\n"}, ""),
    (
        "golden",
        {"include/quire/x.h": "struct quire_x {\n};\n"},
        "include/quire/x.h:1: struct quire_x has no static_assert",
    ),
    (
        "golden",
        {
            "include/quire/x.h": "struct quire_x {\n};\n",
            "src/api/x.c": 'static_assert(4 == 4 && sizeof(struct quire_x) == 4, "");\n',
        },
        "",
    ),
    ("names", {"src/pool/x.h": GOOD_HEADER}, ""),
    ("names", {"src/pool/x.c": "", "tests/pool/x.c": ""}, "tests/pool/x.c:1: x.c is also the name of src/pool/x.c"),
    ("names", {"src/pool/x.h": "int a;\n"}, "src/pool/x.h:1: the header has no include guard"),
    ("names", {"src/pool/y.h": GOOD_HEADER}, "src/pool/y.h:1: the guard must be QUIRE_..._Y_H"),
    ("text", {"src/pool/x.c": "int a;\n"}, ""),
    ("text", {"src/pool/x.c": "int a; /* TO" + "DO */\n"}, "src/pool/x.c:1: unfinished"),
    ("text", {"src/pool/x.c": "int a;"}, "src/pool/x.c:0: the file must end with one newline"),
    ("text", {"src/pool/x.c": "int a; \n"}, "src/pool/x.c:1: blank"),
    ("text", {"src/pool/x.c": f"/* {'é' * 114} */\n"}, ""),
    ("text", {"src/pool/x.c": f"/* {'x' * 115} */\n"}, "src/pool/x.c:1: 121 columns"),
    ("text", {"src/pool/x.c": f"/* {'x' * 115} */\n", "@": "length src/pool/ why\n"}, ""),
    ("text", {"@": "length src/pool/ why\n"}, "tests/lint/allowed.txt:1: the exception"),
    ("text", {"src/pool/x.cu": f"/* {'x' * 115} */\n"}, "src/pool/x.cu:1: 121 columns"),
    ("text", {"tests/x.py": f"# {'é' * 118}\n"}, ""),
    ("text", {"tests/x.py": f"\n# {'x' * 119}\n"}, "tests/x.py:2: 121 columns"),
    ("text", {"tools/x.sh": f"# {'x' * 119}\n"}, "tools/x.sh:1: 121 columns"),
    ("text", {"tools/x": f"#!/bin/sh\n# {'x' * 119}\n"}, "tools/x:2: 121 columns"),
    ("text", {"tools/x": f"{'x' * 200}\n"}, ""),
    ("text", {"cmake/x.cmake": f"# {'x' * 119}\n"}, "cmake/x.cmake:1: 121 columns"),
    ("text", {"CMakeLists.txt": f"# {'x' * 119}\n"}, "CMakeLists.txt:1: 121 columns"),
    ("text", {"Makefile": f"# {'x' * 119}\n"}, "Makefile:1: 121 columns"),
    ("text", {"docs/x.md": f"{'x' * 200}\n", "tests/x.txt": f"{'x' * 200}\n", "NOTICE": f"{'x' * 200}\n"}, ""),
    ("text", {"src/pool/x.c": "int a;\r\n"}, "src/pool/x.c:1: blank"),
    ("text", {"src/pool/x.c": "\tint a;\n"}, "src/pool/x.c:1: tab"),
    ("text", {"src/pool/x.c": "#if 0\n#endif\n"}, "src/pool/x.c:1: dead code"),
    ("text", {"src/pool/x.c": "int f(void) {\n  goto out;\nout:\n  return a ? b : c;\n}\n"}, ""),
    ("text", {"src/pool/x.c": "int f(void) {\nagain:\n  goto again;\n}\n"}, "src/pool/x.c:3: goto again goes backward"),
    ("format", {"src/pool/x.c": "int quire_x(int a) { return a; }\n"}, ""),
    ("format", {"src/pool/x.c": "int  quire_x( int a ) { return a; }\n"}, "src/pool/x.c:1: not as clang-format"),
]


def run_case(lint, name, files, wanted):
    with tempfile.TemporaryDirectory() as root:
        for path, text in {"tests/lint/allowed.txt": files.get("@", ""), **files}.items():
            if path != "@":
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8", newline="") as file:
                    file.write(text)
        with open(os.path.join(lint.root, ".clang-format"), encoding="utf-8") as style:
            with open(os.path.join(root, ".clang-format"), "w", encoding="utf-8") as file:
                file.write(style.read())
        script = os.path.join(lint.root, f"tests/lint/lint_{name}.py")
        done = subprocess.run([sys.executable, "-B", script, root], capture_output=True, text=True)
    if done.returncode == 77:
        return
    right = wanted in done.stdout and done.returncode == (1 if wanted else 0)
    if not right:
        said = (done.stdout + done.stderr).strip().replace("\n", " | ")
        lint.fault(
            f"tests/lint/lint_{name}.py", 1, f"on {list(files)}: wanted '{wanted or 'no fault'}', it said: {said}"
        )


def check_tokenizer(lint):
    text = """
#define MACRO(a) {
extern "C" {
static inline int one(void) { return '}' + sizeof("{"); }
struct s { int (*two)(int, int); };
__attribute__((noreturn)) void three(int a, struct s b);
static const int table[] = {1, 2};
typedef int (*four)(int);
}
int five(char *a[], int b[2]) __attribute__((nonnull));
enum e { A = (1), B };
void (*six)(int) = 0;
struct s seven(void) {
  if (one()) { goto out; }
out:
  return (struct s){0};
}
"""
    found = [(f.name, f.parameters, f.defined, f.static) for f in functions(text)]
    wanted = [
        ("one", 0, True, True),
        ("three", 2, False, False),
        ("five", 2, False, False),
        ("seven", 0, True, False),
    ]
    if found != wanted:
        lint.fault("tests/lint/source.py", 1, f"functions() found {found}")


def main():
    lint = Lint()
    check_tokenizer(lint)
    for name, files, wanted in CASES:
        run_case(lint, name, files, wanted)
    lint.end(len(CASES) + 1)


main()
