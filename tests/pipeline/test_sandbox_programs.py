"""Programs in the box behave as outside: Python warm and cold, C++, JavaScript."""

import subprocess

import pytest

from pipeline.errors import UserError
from pipeline.sandbox import BoxLimits, program
from pipeline.sandbox.box import run_in
from pipeline.sandbox.languages import MAX_SOURCE_BYTES, NOT_COMPILED, compiler_of
from tests.boxes import TIERS, boxed, setup_of

PYTHON = {
    "a value": "print(1)",
    "a code": "import sys; sys.exit(7)",
    "a code beyond a byte": "import sys; sys.exit(300)",
    "a message as code": "import sys; sys.exit('gone')",
    "no code": "import sys; print('x'); sys.exit()",
    "an exception": "def f():\n    return 1 / 0\nf()",
    "a chained exception": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    {}['x']",
    "a syntax error": "def f(:\n",
    "an exit handler": "import atexit; atexit.register(print, 'bye'); print('first')",
    "a thread that outlives the main one": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()",
    "a deleted object": "class C:\n    def __del__(self): print('deleted')\nc = C()",
    "an open file on stdout": "f = open(1, 'w', closefd=False); f.write('unflushed')",
    "a replaced stdout": "import io, sys; sys.stdout = io.TextIOWrapper(sys.stdout.buffer); print('wrapped')",
    "no end of line": "import sys; sys.stdout.write('x')",
    "a hard exit": "import os; print('lost'); os._exit(4)",
    "lines of input": "import sys\nfor line in sys.stdin: print(line.strip()[::-1])",
    "bytes of input": "import sys; print(sys.stdin.buffer.read())",
    "an end of input": "input(); input(); input()",
    "its arguments": "import sys; print(sys.argv)",
    "its name and module": "print(__name__, __import__('sys').modules['__main__'].__dict__ is globals())",
    "its flags": "import sys; print(sys.flags.safe_path, sys.flags.no_site, sys.flags.dont_write_bytecode, sys.path)",
    "an order of a set": "print(list({str(n) for n in range(20)}))",
    "deep recursion": "import sys; sys.setrecursionlimit(5000)\nf = lambda n: n and 1 + f(n - 1)\nprint(f(3000))",
    "a dataclass": "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\nprint(P(1))",
    "text that is no ASCII": "print('é', ascii(input()))",
    "bytes that are no text": "import sys; sys.stdout.write('\\udcff')",
    "a child process": "import subprocess, sys\n"
    "print(subprocess.run([sys.executable, '-c', 'print(2)'], capture_output=True).stdout)",
    "a forked child": "import os\nr, w = os.pipe()\nif os.fork() == 0:\n    os.write(w, b'5')\n    os._exit(0)\n"
    "print(os.read(r, 1), os.wait()[1])",
    "an event loop": "import asyncio\nasync def f(): return 3\nprint(asyncio.run(f()))",
    "a temporary file": "import tempfile\nwith tempfile.TemporaryFile() as f: print(f.write(b'abc'))",
    "a segmentation fault": "import ctypes; ctypes.string_at(0)",
    "a signal to itself": "import os; os.kill(os.getpid(), 15)",
    "a closed pipe": "import os\nr, w = os.pipe()\nos.close(r)\ntry: os.write(w, b'x')\nexcept OSError as e: print(e)",
}


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("source", PYTHON.values(), ids=PYTHON)
def test_a_python_program_says_the_same_in_every_tier_as_outside(tier: str, source: str, tmp_path):
    setup = setup_of(tier)
    stdin = "zeile é\nzweite\n".encode()
    environment = {"LANG": "C.UTF-8", "PATH": "/usr/bin", "PYTHONHASHSEED": "0"}
    line = [*setup.python_argv(source), "one", "two"]
    bare = subprocess.run(line, input=stdin, capture_output=True, env=environment, cwd=tmp_path, check=False)
    inside = boxed(setup, source, "one", "two", stdin=stdin)
    code = bare.returncode if bare.returncode >= 0 else 128 - bare.returncode
    assert (inside.status, inside.code, inside.stdout) == ("exited", code, bare.stdout)
    assert inside.stderr == bare.stderr


@pytest.mark.parametrize("tier", TIERS)
def test_a_program_that_is_not_there_fails_the_box(tier: str):
    result = run_in(setup_of(tier), ["/usr/bin/no-such-program"], b"", BoxLimits())
    assert result.stdout == b"" and b"No such file" in result.stderr
    assert result.status == "failed" or result.code in (126, 127)


@pytest.mark.parametrize("tier", TIERS)
def test_the_fork_server_comes_back_when_it_was_ended(tier: str):
    setup = setup_of(tier)
    if tier == "A":
        pytest.skip("tier A has no server")
    assert boxed(setup, "print(1)").stdout == b"1\n"
    setup.starter.process.kill()
    setup.starter.process.wait()
    assert boxed(setup, "print(2)").stdout == b"2\n"


CPP = """
#include <bits/stdc++.h>
int main() { long long sum = 0, n; while (std::cin >> n) sum += n; std::cout << sum << std::endl; return sum == 0; }
"""


@pytest.mark.parametrize("tier", TIERS)
def test_cpp_is_compiled_and_run_in_the_box(tier: str):
    setup = setup_of(tier)
    if compiler_of("cpp") is None:
        pytest.skip("no C++ compiler is installed")
    right = program("cpp", CPP, BoxLimits(cpu_s=30, wall_s=120))
    result = run_in(setup, right.argv, b"1 2 39", right.limits)
    assert (result.status, result.code, result.stdout) == ("exited", 0, b"42\n"), result.stderr
    wrong = program("cpp", "int main() { return x; }", BoxLimits(cpu_s=30, wall_s=120))
    result = run_in(setup, wrong.argv, b"", wrong.limits)
    assert result.code == NOT_COMPILED and b"not declared" in result.stderr


def test_a_compiler_reads_no_host_file():
    if compiler_of("cpp") is None:
        pytest.skip("no C++ compiler is installed")
    prying = program("cpp", '#include "/etc/passwd"\nint main() {}', BoxLimits(cpu_s=30, wall_s=120))
    result = run_in(setup_of("A"), prying.argv, b"", prying.limits)
    assert result.code == NOT_COMPILED and b"No such file" in result.stderr


@pytest.mark.parametrize("tier", TIERS)
def test_javascript_runs_in_the_box(tier: str):
    setup = setup_of(tier)
    if compiler_of("javascript") is None:
        pytest.skip("no JavaScript runtime is installed")
    source = "console.log(require('fs').readFileSync(0, 'utf8').split(' ').map(Number).reduce((a, b) => a + b))"
    made = program("javascript", source, BoxLimits())
    result = run_in(setup, made.argv, b"1 2 39", made.limits)
    assert (result.status, result.code, result.stdout) == ("exited", 0, b"42\n"), result.stderr
    prying = program("javascript", "console.log(require('fs').readFileSync('/etc/passwd').length)", BoxLimits())
    result = run_in(setup, prying.argv, b"", prying.limits)
    assert result.code != 0 and result.stdout == b""


@pytest.mark.parametrize("tier", TIERS)
def test_a_javascript_program_that_hoards_memory_is_ended(tier: str):
    setup = setup_of(tier)
    if compiler_of("javascript") is None:
        pytest.skip("no JavaScript runtime is installed")
    hoard = "const all = []; for (;;) all.push(Buffer.alloc(10 << 20, 1))"
    made = program("javascript", hoard, BoxLimits(memory_mb=256, cpu_s=30, wall_s=60))
    assert run_in(setup, made.argv, b"", made.limits).status == "memory_limit"


def test_a_source_that_fits_no_argument_is_refused():
    with pytest.raises(ValueError, match="at most"):
        program("cpp", "/" * (MAX_SOURCE_BYTES + 1), BoxLimits())


def test_a_missing_runtime_is_told_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    with pytest.raises(UserError, match="sudo apt-get install --yes nodejs"):
        program("javascript", "1", BoxLimits())
