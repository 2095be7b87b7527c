"""Right programs of odd style, by task: a rejected one is a fault of the verifier."""

TASKS: dict[str, dict] = {
    "add": {
        "function": "add",
        "tests": [{"args": [1, 2], "expected": 3}, {"args": [-4, 4], "expected": 0}, {"args": [7, 5], "expected": 12}],
    },
    "sum": {
        "tests": {
            "inputs": ["3\n1 2 3\n", "1\n-41\n", "4\n9 9 9 90", "2\n100000000000000000000 1\n"],
            "outputs": ["6\n", "-41\n", "117", "100000000000000000001\n"],
        }
    },
    "lines": {
        "tests": [
            {"input": "3\nb 2\na 1\nc 3\n", "output": "a 1\nb 2\nc 3\n", "testtype": "stdin"},
            {"input": "1\nx 9\n", "output": "x 9\n", "testtype": "stdin"},
        ],
    },
    "mean": {
        "comparator": {"name": "tokens", "absolute": 1e-6},
        "tests": {"inputs": ["1 2\n", "1 1 2\n"], "outputs": ["1.5\n", "1.333333333\n"]},
    },
    "words": {
        "tests": [
            "assert set(words('a b a')) == set(['a', 'b'])",
            "assert words('') == []",
            "assert not words('  ')",
        ]
    },
    "half": {
        "function": "half",
        "setup": "from typing import List\nimport math\n",
        "tests": (
            "METADATA = {}\n\ndef check(candidate):\n    assert candidate(3) == 1.5\n"
            "    assert abs(candidate(1) - 0.5) < 1e-6\n    assert math.isclose(candidate(0), 0)\n"
            "    for n in range(50):\n        assert candidate(2 * n) == n\n    assert True, 'done'\n"
        ),
    },
    "pairs": {
        "function": '{"func_name": "pairs"}',
        "tests": [
            {"input": "[3, 1, 2]\n2", "output": "[[1, 2]]", "testtype": "functional"},
            {"input": "[]\n5", "output": "[]", "testtype": "functional"},
        ],
    },
}

HONEST: dict[str, dict[str, str]] = {
    "add": {
        "plain": """
def add(a, b):
    return a + b
""",
        "a lambda": "add = lambda a, b: a + b",
        "an operator": "from operator import add",
        "a partial": """
from functools import partial
add = partial(lambda z, a, b: z + a + b, 0)
""",
        "recursion up to the limit": """
def down(n): return 0 if n == 0 else 1 + down(n - 1)
def add(a, b):
    down(985)
    return a + b
""",
        "annotations that are evaluated": """
def add(a: int, b: int) -> int:
    return add.__annotations__["a"](a) + b
""",
        "typed": """
from __future__ import annotations
def add(a: int, b: int) -> int:
    return a + b
""",
        "generic": """
from typing import TypeVar
T = TypeVar('T', bound=int)
def add(a: T, b: T) -> T:
    return a + b
""",
        "a method of Solution": """
class Solution:
    def add(self, a: int, b: int) -> int:
        return a + b
""",
        "a callable object": """
class Adder:
    def __call__(self, a, b): return a + b
add = Adder()
""",
        "a subclass of int": """
class N(int): pass
def add(a, b):
    return N(a + b)
""",
        "an enum": """
from enum import IntEnum
def add(a, b):
    return IntEnum('E', {'SUM': a + b}).SUM
""",
        "debug prints": """
def add(a, b):
    print('a =', a, 'b =', b)
    return a + b
""",
        "prints a lot": """
def add(a, b):
    print('adding' * 100_000)
    return a + b
""",
        "prints to errors": """
import sys
def add(a, b):
    print('x' * 100_000, file=sys.stderr)
    return a + b
""",
        "a main guard with input": """
def add(a, b):
    return a + b
if __name__ == '__main__':
    print(add(int(input()), 2))
""",
        "an example and asserts while loading": """
def add(a, b):
    return a + b
print(add(1, 2))
assert add(1, 2) == 3
""",
        "a doctest": '''
def add(a, b):
    """
    >>> add(1, 2)
    3
    """
    return a + b
import doctest
doctest.testmod()
''',
        "a unittest that is not run": """
import unittest
def add(a, b):
    return a + b
class T(unittest.TestCase):
    def test(self):
        self.assertEqual(add(1, 2), 3)
""",
        "os and sys": """
import os, sys
def add(a, b):
    os.getpid(); sys.getsizeof(a)
    return a + b
""",
        "a thread": """
import threading
def add(a, b):
    out = []
    t = threading.Thread(target=lambda: out.append(a + b))
    t.start(); t.join()
    return out[0]
""",
        "a pool of threads": """
from concurrent.futures import ThreadPoolExecutor
def add(a, b):
    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(int, (a, b)))
""",
        "asyncio": """
import asyncio
async def later(a, b):
    await asyncio.sleep(0)
    return a + b
def add(a, b):
    return asyncio.run(later(a, b))
""",
        "a child left running": """
import os, time
def add(a, b):
    if os.fork() == 0:
        time.sleep(100)
    return a + b
""",
        "a subprocess": """
import subprocess, sys
def add(a, b):
    return int(subprocess.check_output([sys.executable, '-c', f'print({a} + {b})']))
""",
        "deep recursion": """
import sys
sys.setrecursionlimit(100_000)
def down(n): return 0 if n == 0 else 1 + down(n - 1)
def add(a, b):
    down(20_000)
    return a + b
""",
        "a dataclass": """
from __future__ import annotations
from dataclasses import dataclass
@dataclass
class P:
    a: int
    b: int
def add(a, b):
    p = P(a, b)
    return p.a + p.b
""",
        "big numbers": """
def add(a, b):
    return a + b + (10 ** 5000 - 10 ** 5000)
""",
        "fractions": """
from fractions import Fraction as F
def add(a, b):
    return int(F(a, 2) * 2 + F(b))
""",
        "decimals": """
from decimal import Decimal, getcontext
getcontext().prec = 100
def add(a, b):
    return int(Decimal(a) + b)
""",
        "bits": """
def add(a, b):
    m = (1 << 32) - 1
    while b & m:
        a, b = a ^ b, (a & b) << 1
    return a & m if b > 0 else a if -2**31 <= a < 2**31 else ~((a & m) ^ m)
""",
        "a temporary file": """
import tempfile
def add(a, b):
    with tempfile.TemporaryFile('w+') as f:
        f.write(str(a + b))
        f.seek(0)
        return int(f.read())
""",
        "a global": """
total = 0
def add(a, b):
    global total
    total += a + b
    return total
""",
        "a mutable default": """
def add(a, b, seen=[]):
    seen.append(a + b)
    return sum(seen)
""",
        "a cache": """
from functools import lru_cache
@lru_cache(maxsize=None)
def add(a, b):
    return a + b
""",
        "a decorator": """
import functools
def logged(f):
    @functools.wraps(f)
    def inner(*args, **kw):
        print(args)
        return f(*args, **kw)
    return inner
@logged
def add(a, b):
    return a + b
""",
        "variable arguments": """
def add(*numbers, **options):
    return sum(numbers)
""",
        "positional only": """
def add(a, b, /):
    return a + b
""",
        "a walrus and a match": """
def add(a, b):
    match (s := a + b):
        case 0:
            return 0
        case n:
            return n
""",
        "nested functions": """
def add(a, b):
    def inner():
        nonlocal a
        a += b
    inner()
    return a
""",
        "an exit handler": """
import atexit, os
atexit.register(os._exit, 1)
def add(a, b):
    return a + b
""",
        "a little sleep": """
import time
def add(a, b):
    time.sleep(0.05)
    return a + b
""",
        "another alphabet": """
def add(a, b):
    ж, щ = a, b  # 加
    return ж + щ
""",
        "tabs and blank lines": """
def add(a, b):


	return (
		a

		+ b
	)
""",
        "Windows line ends": "def add(a, b):\r\n    return a + b\r\n",
        "semicolons": "def add(a, b): c = a; c += b; return c",
        "its own exec": "exec('def add(a, b): return a + b')",
        "its own module trick": """
import sys
def add(a, b):
    return a + b
sys.modules[__name__].plus = add
""",
        "an overridden builtin": """
sum = lambda a, b: a + b
list = dict = None
def add(a, b):
    return sum(a, b)
""",
        "random but fixed": """
import random
def add(a, b):
    random.shuffle([1, 2, 3])
    return a + b
""",
        "an exception on the way": """
def add(a, b):
    try:
        raise ValueError(a + b)
    except ValueError as e:
        return e.args[0]
""",
        "an alarm": """
import signal
signal.alarm(20)
def add(a, b):
    return a + b
""",
        "a warning": """
import warnings
warnings.warn('slow')
def add(a, b):
    return a + b
""",
        "a higher limit of digits": """
import sys
sys.set_int_max_str_digits(0)
def add(a, b):
    return int(str(a)) + b
""",
    },
    "sum": {
        "input": """
n = int(input())
print(sum(map(int, input().split())))
""",
        "read all": """
import sys
print(sum(map(int, sys.stdin.read().split()[1:])))
""",
        "bytes": """
import sys
print(sum(map(int, sys.stdin.buffer.read().split()[1:])))
""",
        "readline": """
import sys
input = sys.stdin.readline
n = int(input())
print(sum(int(x) for x in input().split()))
""",
        "lines": """
import sys
lines = sys.stdin.readlines()
print(sum(map(int, lines[1].split())))
""",
        "a loop over stdin": """
import sys
total = 0
for i, line in enumerate(sys.stdin):
    if i: total += sum(map(int, line.split()))
print(total)
""",
        "open(0)": "print(sum(map(int, open(0).read().split()[1:])))",
        "os.read": """
import os
print(sum(map(int, os.read(0, 1 << 20).split()[1:])))
""",
        "one byte at a time": """
import sys
s = ''
while c := sys.stdin.read(1): s += c
print(sum(map(int, s.split()[1:])))
""",
        "fileinput": """
import fileinput
rows = [line for line in fileinput.input()]
print(sum(map(int, rows[1].split())))
""",
        "input until the end": """
total, first = 0, True
try:
    while True:
        row = input()
        if not first: total += sum(map(int, row.split()))
        first = False
except EOFError:
    print(total)
""",
        "a main guard": """
def main():
    input()
    print(sum(map(int, input().split())))
if __name__ == '__main__':
    main()
""",
        "exit afterwards": """
import sys
input()
print(sum(map(int, input().split())))
sys.exit()
""",
        "exit(0) afterwards": """
input()
print(sum(map(int, input().split())))
exit(0)
""",
        "quit afterwards": """
input()
print(sum(map(int, input().split())))
quit()
""",
        "os._exit after a flush": """
import os
input()
print(sum(map(int, input().split())), flush=True)
os._exit(0)
""",
        "sys.exit(main())": """
import sys
def main():
    input()
    print(sum(map(int, input().split())))
sys.exit(main())
""",
        "end without a line": """
input()
print(sum(map(int, input().split())), end='')
""",
        "spaces around": r"""
input()
print('  ', sum(map(int, input().split())), ' \n\n')
""",
        "Windows line ends in the output": r"""
import sys
input()
sys.stdout.write(str(sum(map(int, input().split()))) + '\r\n')
""",
        "sys.stdout.write": """
import sys
input()
sys.stdout.write(str(sum(map(int, input().split()))))
""",
        "bytes written": """
import sys
input()
sys.stdout.buffer.write(b'%d' % sum(map(int, input().split())))
""",
        "os.write": """
import os
input()
os.write(1, str(sum(map(int, input().split()))).encode())
""",
        "a buffer joined at the end": r"""
out = []
input()
out.append(str(sum(map(int, input().split()))))
print('\n'.join(out))
""",
        "a redirected stdout": """
import io, sys
old, sys.stdout = sys.stdout, io.StringIO()
input()
print(sum(map(int, input().split())))
old.write(sys.stdout.getvalue())
""",
        "fast input by io": """
import io, os
input = io.BytesIO(os.read(0, os.fstat(0).st_size)).readline
input()
print(sum(map(int, input().split())))
""",
        "printed at exit": """
import atexit
input()
t = sum(map(int, input().split()))
atexit.register(print, t)
""",
        "a big stack in a thread": """
import sys, threading
sys.setrecursionlimit(10**6)
threading.stack_size(1 << 26)
def total(xs): return xs[0] + total(xs[1:]) if xs else 0
def main():
    input()
    print(total(list(map(int, input().split()))))
t = threading.Thread(target=main)
t.start()
t.join()
""",
        "a thread nobody waits for": """
import threading, time
def main():
    time.sleep(0.1)
    input()
    print(sum(map(int, input().split())))
threading.Thread(target=main).start()
""",
        "errors written": """
import sys
print('debug ' * 1000, file=sys.stderr)
input()
print(sum(map(int, input().split())))
""",
        "a generator of tokens": """
import sys
def tokens():
    for line in sys.stdin:
        yield from line.split()
it = tokens()
print(sum(int(next(it)) for _ in range(int(next(it)))))
""",
        "decimals": """
from decimal import *
getcontext().prec = 50
input()
print(sum(map(Decimal, input().split())))
""",
        "star imports": """
from math import *
from collections import *
from itertools import *
input()
print(list(accumulate(map(int, input().split())))[-1])
""",
        "a heavy loop": """
input()
t = sum(map(int, input().split()))
for _ in range(10**6): pass
print(t)
""",
        "a hundred megabytes": """
input()
big = bytearray(100 << 20)
print(sum(map(int, input().split())))
""",
        "a look at itself": """
import inspect, sys
def f(): return 1
assert sys.modules['__main__'].f is f and __name__ == '__main__'
input()
print(sum(map(int, input().split())))
""",
        "a class of its own for main": """
import pickle
class Box:
    def __init__(self, v): self.v = v
input()
print(pickle.loads(pickle.dumps(Box(sum(map(int, input().split()))))).v)
""",
        "a file of its own": """
input()
open('out.txt', 'w').write(str(sum(map(int, input().split()))))
print(open('out.txt').read())
""",
        "zeros in front": """
input()
print(f'{sum(map(int, input().split())):+}')
""",
    },
    "lines": {
        "sorted": """
n = int(input())
for row in sorted(input() for _ in range(n)):
    print(row)
""",
        "joined with spaces at the ends": r"""
import sys
print(' \n'.join(sorted(sys.stdin.read().split('\n')[1:])).strip(), '\n')
""",
        "printed by end": """
n = int(input())
for row in sorted(input() for _ in range(n)):
    for word in row.split():
        print(word, end=' ')
    print()
""",
        "a heap": """
import heapq
h = [input() for _ in range(int(input()))]
heapq.heapify(h)
while h: print(heapq.heappop(h))
""",
    },
    "mean": {
        "plain": """
x = list(map(int, input().split()))
print(sum(x) / len(x))
""",
        "six digits": """
x = list(map(int, input().split()))
print('%.7f' % (sum(x) / len(x)))
""",
        "an exponent": """
x = list(map(int, input().split()))
print(f'{sum(x) / len(x):.9e}')
""",
        "a fraction": """
from fractions import Fraction
x = list(map(int, input().split()))
print(float(Fraction(sum(x), len(x))))
""",
        "numbers in another order": """
x = sorted(map(float, input().split()), reverse=True)
m = 0.0
for v in x: m += v / len(x)
print(m)
""",
    },
    "words": {
        "split": """
def words(s):
    return sorted(set(s.split()))
""",
        "with duplicates": """
def words(s):
    return s.split()
""",
        "a subclass of list": """
class Words(list): pass
def words(s):
    return Words(s.split())
""",
        "regular expressions": r"""
import re
def words(s):
    return re.findall(r'\S+', s)
""",
        "a counter's keys": """
from collections import Counter
def words(s):
    return [*Counter(s.split())]
""",
    },
    "half": {
        "division": """
def half(n):
    return n / 2
""",
        "typed": """
def half(n: List[int]) -> float:
    return n * 0.5
""",
        "math": """
def half(n):
    return math.fsum([n / 4] * 2)
""",
        "an integer where it can": """
def half(n):
    return n // 2 if n % 2 == 0 else n / 2
""",
        "a subclass of float": """
class F(float): pass
def half(n):
    return F(n / 2)
""",
    },
    "pairs": {
        "tuples": """
def pairs(xs, k):
    return [(a, b) for a in xs for b in xs if a < b and a * b == k]
""",
        "lists": """
def pairs(xs, k):
    return [[a, b] for a in sorted(xs) for b in xs if a < b and a * b == k]
""",
        "a method": """
class Solution:
    def __init__(self):
        self.found = []
    def pairs(self, xs: list[int], k: int) -> list[list[int]]:
        xs.sort()
        for i, a in enumerate(xs):
            for b in xs[i + 1:]:
                if a * b == k: self.found.append((a, b))
        return self.found
""",
        "a method that leaves its imports to the judge": """
class Solution:
    def pairs(self, xs: List[int], k: int) -> List[List[int]]:
        seen = defaultdict(int, {x: 1 for x in xs})
        return [p for p in combinations(sorted(xs), 2) if math.prod(p) == k and seen[p[0]] and p[0] < inf]
""",
        "combinations": """
from itertools import combinations
def pairs(xs, k):
    return list(p for p in combinations(sorted(xs), 2) if p[0] * p[1] == k)
""",
        "a tuple of tuples": """
def pairs(xs, k):
    return tuple((a, b) for a in xs for b in xs if a < b and a * b == k)
""",
    },
}


def honest() -> list[tuple[str, str, str]]:
    """(task, name, source) of every honest program."""
    return [(task, name, source) for task, named in HONEST.items() for name, source in named.items()]
