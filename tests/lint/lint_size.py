"""Sizes: headers below 400 lines, files below 1,200, functions below 70, at most 6 parameters."""

from source import Lint, functions

HEADER_LINES = 400
FILE_LINES = 1200
FUNCTION_LINES = 70
PARAMETERS = 6


def main():
    lint = Lint()
    paths = lint.files(".c", ".h", ".cu", ".cuh")
    count = 0
    for path in paths:
        text = lint.read(path)
        lines = text.count("\n")
        limit = HEADER_LINES if path.endswith(".h") else FILE_LINES
        if lines >= limit:
            lint.fault(path, lines, f"{lines} lines; the limit is below {limit}")
        for function in functions(text):
            count += 1
            size = function.end - function.line + 1
            if function.defined and size >= FUNCTION_LINES:
                lint.fault(
                    path, function.line, f"{function.name} has {size} lines; the limit is below {FUNCTION_LINES}"
                )
            if function.parameters > PARAMETERS:
                lint.fault(
                    path,
                    function.line,
                    f"{function.name} has {function.parameters} parameters; the limit is {PARAMETERS}",
                )
    if paths and count == 0:
        lint.fault("tests/lint/source.py", 1, "no function was found in any file: the tokenizer is broken")
    lint.end(count)


main()
