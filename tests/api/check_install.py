"""An installed libquire is enough: it is installed into a folder of its own, the example is compiled against it as its
first comment says, with nothing but pkg-config, by the build's compiler and clang where it is, and runs; so does the
test of the Python package. Then libquire.so is taken away, and pkg-config --static names all that a program needs which
calls every function of the interface.

Arguments: the source folder, the build folder, cmake, the C compiler."""

import os
import re
import shutil
import subprocess
import sys
import tempfile

root, build, cmake, compiler = sys.argv[1:5]
if not shutil.which("pkg-config"):
    print("skipped: pkg-config is missing")
    sys.exit(77)


def run(*command, **named):
    done = subprocess.run(command, capture_output=True, text=True, **named)
    if done.returncode:
        print(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        sys.exit(1)
    return done.stdout


def compilers():
    return {compiler, shutil.which("clang-14") or compiler}


def check_static(prefix, environment):
    """The archive alone: the example, and a program that refers to all of libquire.so's functions."""
    library = os.path.join(prefix, "lib")
    for name in os.listdir(library):
        if name.startswith("libquire.so"):
            os.remove(os.path.join(library, name))
    flags = run("pkg-config", "--static", "--cflags", "--libs", "quire", env=environment).split()
    with open(os.path.join(root, "src/api/quire.map"), encoding="utf-8") as file:
        functions = re.findall(r"\b(quire_\w+);", re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S))
    everything, program = os.path.join(prefix, "everything.c"), os.path.join(prefix, "static")
    with open(everything, "w", encoding="utf-8") as file:
        table = ", ".join(f"(call){name}" for name in functions)
        file.write(f'#include "quire/quire.h"\ntypedef void (*call)(void);\nconst call calls[] = {{{table}}};\n')
        file.write(f"int main(void) {{ return sizeof calls / sizeof calls[0] == {len(functions)} ? 0 : 1; }}\n")
    for one in compilers():
        for source, said in ((os.path.join(root, "examples/embed.c"), "done\n"), (everything, "")):
            run(one, "-std=c17", source, "-o", program, *flags)
            assert run(program).endswith(said)
    return flags


def main():
    with tempfile.TemporaryDirectory() as prefix:
        run(cmake, "--install", build, "--prefix", prefix)
        library = os.path.join(prefix, "lib")
        if os.path.exists(os.path.join(prefix, "bin/quire")):  # a build with the program
            pages = set(os.listdir(os.path.join(prefix, "share/man/man1")))
            listed = run(os.path.join(prefix, "bin/quire"), "man")
            named = {f"quire-{name}.1" for name in re.findall(r"quire\\-(\w+) \(1\)", listed)}
            assert pages == {"quire.1"} | named, pages
            with open(os.path.join(prefix, "share/bash-completion/completions/quire"), encoding="utf-8") as file:
                assert "complete -o default -F _quire quire\n" in file.read()
            with open(os.path.join(prefix, "share/zsh/site-functions/_quire"), encoding="utf-8") as file:
                assert file.read().startswith("#compdef quire\n")
            with open(os.path.join(prefix, "share/fish/vendor_completions.d/quire.fish"), encoding="utf-8") as file:
                assert "complete -c quire " in file.read()
        environment = dict(os.environ, PKG_CONFIG_PATH=os.path.join(library, "pkgconfig"), LD_LIBRARY_PATH=library)
        flags = run("pkg-config", "--cflags", "--libs", "quire", env=environment).split()
        linked = [flag for flag in flags if flag.startswith("-l")]
        assert linked == ["-lquire"], f"an embedder links libquire alone, not {linked}"
        version = run("pkg-config", "--modversion", "quire", env=environment).strip()
        source = os.path.join(root, "examples/embed.c")
        program = os.path.join(prefix, "embed")
        for one in compilers():
            for standard in ("-std=c17", "-std=gnu2x"):
                run(one, standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", source, "-o", program, *flags)
                assert run(program, env=environment).endswith("done\n")
        script = f"import quire; assert quire.version() == {version!r}, quire.version()"
        environment["PYTHONPATH"] = os.path.join(root, "bindings/python")
        environment["QUIRE_LIBRARY"] = os.path.join(library, "libquire.so")
        run(sys.executable, "-B", "-c", script, env=environment)
        run(sys.executable, "-B", os.path.join(root, "bindings/python/test_quire.py"), env=environment)
        print(f"quire {version}: {' '.join(flags)}")
        print(f"static: {' '.join(check_static(prefix, environment))}")


main()
