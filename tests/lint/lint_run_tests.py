"""What tools/run_tests says at its end: which tests failed, what they said last, and the count."""

import os
import subprocess
import tempfile

from source import Lint

TESTS = """
add_test(good "sh" "-c" "echo all is well")
add_test(bad "sh" "-c" "seq 100000; echo the reason; exit 1")
add_test(aborts "sh" "-c" "echo it said this; kill -ABRT $$")
add_test(cases "sh" "-c" "cat cases; exit 1")
add_test(late "sh" "-c" "echo it began; exec sleep 60")
set_tests_properties(late PROPERTIES TIMEOUT 1)
add_test(skipped "sh" "-c" "exit 77")
set_tests_properties(skipped PROPERTIES SKIP_RETURN_CODE 77)
"""
# of a program of cases, only what went wrong
CASES_TEXT = (
    "[ RUN      ] one\nits error\n[  FAILED  ] one\n"
    + "".join(f"[ RUN      ] {i}\nfine\n[       OK ] {i}\n" for i in range(50))
    + "[ RUN      ] ends in the middle\n"
)
# arguments of ctest, exit status above 0, what the last lines must have, and must not
CASES = [
    ([], True, ["--- the end of bad:", "  | 100000\n  | the reason\n", "  | it said this\n", "--- the end of late:",
                "  | it began\n", "  | its error\n  | [  FAILED  ] one\n  | [ RUN      ] ends in the middle\n",
                "failed: bad aborts cases late\n", "1 skipped"], ["well", "fine"], "1 passed, 4 failed"),
    (["-R", "good|skipped"], False, ["1 skipped"], ["--- the end", "failed:"], "1 passed, 0 failed"),
    (["-R", "nothing"], True, [], ["--- the end"], "0 passed, 1 failed"),
]


def run_case(lint, root, arguments, wrong, wanted, unwanted, count):
    program = os.path.join(lint.root, "tools/run_tests")
    done = subprocess.run([program, root, *arguments], capture_output=True, text=True)
    end = done.stdout[done.stdout.rfind("Total Test time"):]
    right = (done.returncode != 0) == wrong and done.stdout.endswith(f"\n{count}\n")
    right = right and all(text in end for text in wanted) and not any(text in end for text in unwanted)
    if not right or end.count("\n") > 120:
        lint.fault("tools/run_tests", 1, f"{arguments}: exit {done.returncode}, ends with: {end}")


def main():
    lint = Lint()
    with tempfile.TemporaryDirectory() as root:
        with open(os.path.join(root, "CTestTestfile.cmake"), "w", encoding="utf-8") as file:
            file.write(TESTS)
        with open(os.path.join(root, "cases"), "w", encoding="utf-8") as file:
            file.write(CASES_TEXT)
        for case in CASES:
            run_case(lint, root, *case)
    lint.end(len(CASES))


main()
