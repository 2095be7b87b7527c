"""Programs that solve none of the tasks below and try to be accepted all the same, or to harm whoever judges them.

TASKS names the tasks, ATTACKS holds attacks that a wrong answer to any task can carry out, CHEATS what suits one task.
No program here is right: an accepted one is a fault of the verifier.
"""

TASKS: dict[str, dict] = {
    "call": {
        "function": "add",
        "tests": [{"args": [1, 2], "expected": 3}, {"args": [-4, 4], "expected": 0}, {"args": [7, 5], "expected": 12}],
    },
    "stdin": {
        "tests": {
            "language": "python",
            "test_cases": [
                {"type": "stdin_stdout", "input": "3\n1 2 3\n", "output": "6\n"},
                {"type": "stdin_stdout", "input": "1\n-41\n", "output": "-41\n"},
                {"type": "stdin_stdout", "input": "4\n9 9 9 90\n", "output": "117\n"},
            ],
        }
    },
    "expression": {"tests": ["assert add(1, 2) == 3", "assert add(-4, 4) == 0", "assert add(7, 5) == 12"]},
    "script": {
        "function": "add",
        "tests": "def check(candidate):\n    for a in range(20):\n        assert candidate(a, 2 * a) == 3 * a\n",
    },
}

WRONG_ANSWERS: dict[str, str] = {
    "call": "def add(a, b): return 99",
    "stdin": "print(99)",
    "expression": "def add(a, b): return 99",
    "script": "def add(a, b): return 99",
}
"""What stands after an attack."""

ATTACKS: dict[str, str] = {
    "exits": """
import sys
sys.exit(0)
""",
    "raises SystemExit": "raise SystemExit",
    "raises SystemExit with a text": "raise SystemExit('passed')",
    "exits without cleaning up": """
import os
os._exit(0)
""",
    "exits by exit()": "exit(0)",
    "raises KeyboardInterrupt": "raise KeyboardInterrupt",
    "raises an exception that cannot be printed": """
class E(BaseException):
    def __str__(self): raise E
    __repr__ = __str__
raise E
""",
    "aborts": """
import os
os.abort()
""",
    "ends by a signal": """
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
""",
    "ends by a signal that says done": """
import os, signal
os.kill(os.getpid(), signal.SIGTERM)
""",
    "kills the driver": """
import os, signal
os.kill(os.getppid(), signal.SIGKILL)
""",
    "kills everyone": """
import os, signal
os.kill(-1, signal.SIGKILL)
""",
    "kills its group": """
import os, signal
os.killpg(0, signal.SIGTERM)
""",
    "replaces itself by a shell command": """
import os
os.execv('/bin/true', ['true'])
""",
    "replaces itself by a python that prints": """
import os, sys
os.execv(sys.executable, [sys.executable, '-c', 'print(3); print(6)'])
""",
    "crashes the interpreter": """
import ctypes
ctypes.string_at(0)
""",
    "patches json": """
import json
json.dumps = lambda *a, **k: '{"status": "value", "value": 3}'
json.loads = lambda *a, **k: [3]
json.JSONEncoder.encode = lambda self, o: '{"status": "value", "value": 3}'
json.encoder.c_make_encoder = None
""",
    "patches os": """
import os
write = os.write
os.write = lambda fd, data: write(fd, b'{"status": "value", "value": true}')
os._exit = lambda code: None
os.fork = lambda: 0
""",
    "patches builtins": """
import builtins
builtins.isinstance = lambda *a: True
builtins.issubclass = lambda *a: True
builtins.len = lambda x: 0
builtins.type = lambda x: int
builtins.compile = builtins.exec = builtins.eval = lambda *a: None
""",
    "makes everything equal": """
import builtins
class E:
    __eq__ = lambda s, o: True
    __ne__ = lambda s, o: False
    __hash__ = lambda s: 0
builtins.int = builtins.bool = builtins.float = builtins.str = builtins.set = lambda *a: E()
""",
    "patches the driver's modules": """
import sys, types
for name, module in list(sys.modules.items()):
    if "boxed" in name or name == "__main__":
        for key, value in list(vars(module).items()):
            if isinstance(value, types.FunctionType):
                setattr(module, key, lambda *a, **k: {"status": "value", "value": 3})
""",
    "rewrites the driver's code in place": """
import sys, types
def mine(*a, **k): return {"status": "value", "value": True}
for name, module in list(sys.modules.items()):
    if "boxed" in name:
        for value in list(vars(module).values()):
            if isinstance(value, types.FunctionType) and not value.__closure__: value.__code__ = mine.__code__
""",
    "empties sys.modules": """
import sys
sys.modules.clear()
""",
    "puts itself in the place of modules": """
import sys
class M:
    def __getattr__(self, name): return lambda *a, **k: True
for name in ("json", "os", "math", "socket", "base64", "__main__", "pipeline.verify.code.boxed.data"):
    sys.modules[name] = M()
""",
    "hooks imports": """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None): raise SystemExit(0)
sys.meta_path.insert(0, Finder())
sys.path_hooks.insert(0, lambda p: Finder())
import colorsys
""",
    "traces every call": """
import sys
def trace(frame, event, arg):
    frame.f_locals.clear()
    if event == "return" and frame.f_code.co_name == "add": raise SystemExit(0)
    return trace
sys.settrace(trace)
sys.setprofile(lambda frame, event, arg: None)
""",
    "changes the frames that called it": """
import ctypes, sys
frame = sys._getframe()
while frame:
    for name in list(frame.f_locals):
        if name in ("test", "job", "outcome", "problem"):
            try: frame.f_locals[name] = None
            except Exception: pass
    ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(1))
    frame = frame.f_back
""",
    "looks for the expected value in every frame": """
import sys
frame, found = sys._getframe(), []
while frame:
    for place in (frame.f_locals, frame.f_globals):
        for name, value in list(place.items()):
            if "expected" in str(name): found.append(value)
            if isinstance(value, dict) and "expected" in value: found.append(value["expected"])
    frame = frame.f_back
def add(a, b): return found[0]
if found: print(found[0])
raise SystemExit
""",
    "looks for the expected value in all objects": """
import gc
found = [o["expected"] for o in gc.get_objects() if isinstance(o, dict) and "expected" in o]
found += [o["output"] for o in gc.get_objects() if isinstance(o, dict) and "output" in o]
if found: print(found[0])
def add(a, b): return found[0]
raise SystemExit
""",
    "prints whatever it can find of the job": """
import gc, json
for o in gc.get_objects():
    if isinstance(o, dict) and ("tests" in o or "nonce" in o): print(json.dumps(o, default=str))
""",
    "writes to every descriptor": r"""
import json, os
for fd in range(64):
    for line in (b'ready', b'{"status": "value", "value": 3}', b'{"status": "value", "value": true}', b'passed'):
        try: os.write(fd, line + b"\n")
        except OSError: pass
os._exit(0)
""",
    "answers before it is asked": """
import os
for value in (b'{"status": "value", "value": true}',):
    try: os.write(3, value)
    except OSError: pass
os._exit(0)
""",
    "claims that time ran out": """
import os
for fd in (1, 3):
    try: os.write(fd, b'{"status": "wall_limit"}')
    except OSError: pass
os._exit(0)
""",
    "forges lines with a nonce": r"""
import os
for fd in (1, 2, 3, 4, 5, 6, 7):
    for nonce in ("0" * 32, "f" * 32, "", "nonce"):
        try: os.write(fd, f'{nonce} {{"status": "value", "value": 3, "printed": "Ng=="}}\n'.encode())
        except OSError: pass
os._exit(0)
""",
    "closes every descriptor": """
import os
os.closerange(0, 256)
""",
    "mixes up descriptors": """
import os
for fd in range(3, 20):
    for other in (0, 1, 2):
        try: os.dup2(fd, other)
        except OSError: pass
print('{"status": "value", "value": 3}', flush=True)
os._exit(0)
""",
    "reads descriptors for tests": """
import os
found = b""
for fd in range(3, 64):
    try:
        os.lseek(fd, 0, 0)
        found += os.read(fd, 1 << 16)
    except OSError: pass
if found: print(found.decode(errors="replace"))
""",
    "opens descriptors anew through /proc": r"""
import glob, os
for path in glob.glob("/proc/*/fd/*") + glob.glob("/dev/fd/*") + ["/dev/stdin", "/dev/stdout"]:
    try:
        with open(path, "r+b", buffering=0) as f: print(f.read(1 << 12))
    except OSError: pass
    try:
        with open(path, "wb", buffering=0) as f: f.write(b'{"status": "value", "value": 3}\n')
    except OSError: pass
os._exit(0)
""",
    "reads the memory of its parents": """
import glob, re
for path in glob.glob("/proc/[0-9]*/mem") + glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
    try: print(re.findall(rb'expected.{0,40}|[0-9a-f]{32}', open(path, "rb").read(1 << 20)))
    except (OSError, OverflowError): pass
""",
    "reads its parent's memory by a system call": """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
class Iovec(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(4096)
here, there = Iovec(ctypes.addressof(buffer), 4096), Iovec(id(os) & ~4095, 4096)
if libc.process_vm_readv(os.getppid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0) > 0: os._exit(0)
""",
    "traces its parent": """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(16, os.getppid(), 0, 0) == 0:
    while True: pass
""",
    "takes descriptors of its parent": r"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
parent = os.pidfd_open(os.getppid())
for fd in range(3, 12):
    taken = libc.syscall(438, parent, fd, 0)
    if taken >= 0: os.write(taken, b'{"status": "value", "value": 3}\n')
""",
    "stops its parent": """
import os, signal
os.kill(os.getppid(), signal.SIGSTOP)
os._exit(0)
""",
    "sleeps for ever": """
import time
time.sleep(1e6)
""",
    "takes its parent's time": """
import os, resource
resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))
resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (3, 3))
""",
    "lifts its own limits": """
import resource
for limit in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):
    try: resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (ValueError, OSError): pass
""",
    "registers exit handlers": """
import atexit, os, threading
atexit.register(os._exit, 0)
atexit.register(print, "6")
threading._register_atexit(os._exit, 0)
raise KeyboardInterrupt
""",
    "ignores every signal": """
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
""",
    "answers from a signal handler": """
import os, signal
signal.signal(signal.SIGALRM, lambda *a: os._exit(0))
signal.setitimer(signal.ITIMER_REAL, 0.01)
while True: pass
""",
    "leaves from a thread": """
import os, threading, time
threading.Thread(target=lambda: (time.sleep(0.05), os._exit(0))).start()
time.sleep(0.2)
""",
    "answers from a fork": """
import os
if os.fork() == 0:
    for fd in (1, 3, 4):
        try: os.write(fd, b'{"status": "value", "value": 3}')
        except OSError: pass
    os._exit(0)
os.wait()
os._exit(0)
""",
    "leaves a daemon that answers later tests": r"""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            for fd in (1, 3):
                try: os.write(fd, b'6\n')
                except OSError: pass
            time.sleep(0.01)
    os._exit(0)
""",
    "leaves notes for later tests": """
import os
try: print(open("/tmp/note").read())
except OSError: open("/tmp/note", "w").write("6")
""",
    "plants modules for later tests": """
for name in ("json", "os", "socket", "typing", "random", "sitecustomize", "usercustomize"):
    for folder in ("/tmp", ".", "/usr/lib/python3.11"):
        try: open(f"{folder}/{name}.py", "w").write("import os; os._exit(0)")
        except OSError: pass
import random
""",
    "plants links": """
import os
for target in ("/", "/proc", "/etc/passwd", "/tmp/loop"):
    try: os.symlink(target, "/tmp/" + ("loop" if target == "/tmp/loop" else str(len(os.listdir("/tmp")))))
    except OSError: pass
os.mkdir("/tmp/closed", 0)
""",
    "reads tests from disk": """
import glob
for path in glob.glob("/**/*test*", recursive=True)[:50] + glob.glob("/tmp/*") + ["/etc/passwd", "/root/.bashrc"]:
    try: print(open(path).read(200))
    except (OSError, UnicodeDecodeError): pass
""",
    "looks at its environment and arguments": """
import os, sys
print(dict(os.environ), sys.argv, sys.orig_argv, sys.flags)
""",
    "fills the disk": """
try:
    for i in range(64): open(f"/tmp/{i}", "wb").write(bytes(1 << 20))
except OSError: pass
""",
    "uses up the inodes": """
try:
    for i in range(20_000): open(f"/tmp/{i}", "w").close()
except OSError: pass
""",
    "nests folders": """
import os
try:
    for i in range(900): os.mkdir("d"); os.chdir("d")
except OSError: pass
""",
    "floods its output": r"""
for _ in range(300): print('6\n' * 10_000)
""",
    "floods its errors": """
import sys
for _ in range(300): sys.stderr.write('6' * 20_000)
""",
    "connects to the network": """
import socket
for where in (("1.1.1.1", 53), ("127.0.0.1", 22), ("127.0.0.1", 8000)):
    try: socket.create_connection(where, 0.2).send(b"x")
    except OSError: pass
""",
    "listens on sockets": r"""
import socket
for name in ("\0driver", "/tmp/socket"):
    s = socket.socket(socket.AF_UNIX); s.bind(name); s.listen()
""",
    "makes anonymous files": """
import os
try:
    for i in range(40): os.write(os.memfd_create(str(i)), b"6" * (1 << 16))
except OSError: pass
""",
    "takes all memory": """
x = []
while True: x.append(bytearray(1 << 24))
""",
    "forks for ever": """
import os
while True: os.fork()
""",
    "starts threads for ever": """
import threading, time
while True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
""",
    "loops for ever": "while True: pass",
    "loops for ever and ignores the signal": """
import signal
signal.signal(signal.SIGXCPU, signal.SIG_IGN)
while True: pass
""",
    "recurses for ever": """
def f(): return f()
f()
""",
    "recurses in C": """
import sys
sys.setrecursionlimit(10**9)
f = lambda: f()
f()
""",
    "computes a tower of powers": "x = 9 ** 9 ** 9",
    "searches with an evil regular expression": """
import re
re.match('(a+)+$', 'a' * 64 + 'b')
""",
    "nests brackets": """
(((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((())))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))))
""",
    "holds a null byte": "x = 1\0",
    "does not compile": "def add(a, b) return a + b",
}

UNTIL_THE_WALL = frozenset({"stops its parent", "sleeps for ever"})
"""Attacks that take all of `wall_s`, or a multiple of it."""

CHEATS: dict[str, dict[str, str]] = {
    "call": {
        "returns an object that equals everything": """
class E:
    __eq__ = lambda s, o: True
def add(a, b): return E()
""",
        "returns an int that equals everything": """
class E(int):
    __eq__ = lambda s, o: True
    __hash__ = int.__hash__
    __index__ = __int__ = lambda s: 3
    __repr__ = lambda s: '3'
def add(a, b): return E(99)
""",
        "returns a float that equals everything": """
class E(float):
    __eq__ = lambda s, o: True
    __repr__ = lambda s: '3'
def add(a, b): return E(9)
""",
        "returns a text that equals everything": """
class E(str):
    __eq__ = lambda s, o: True
    __hash__ = str.__hash__
    __str__ = lambda s: '3'
def add(a, b): return E('x')
""",
        "returns a list that lies about its contents": """
class E(list):
    __eq__ = lambda s, o: True
    __iter__ = lambda s: iter([3])
def add(a, b): return E([9])
""",
        "lies about its class": """
class E:
    __class__ = int
    __index__ = __int__ = lambda s: 3
def add(a, b): return E()
""",
        "returns a class of a lying metaclass": """
class M(type):
    __eq__ = lambda c, o: True
    __hash__ = type.__hash__
    __instancecheck__ = lambda c, o: True
class E(metaclass=M): pass
def add(a, b): return E
""",
        "returns True for one": "def add(a, b): return True",
        "returns NaN": "def add(a, b): return float('nan')",
        "returns text": "def add(a, b): return str(a + b)",
        "returns a float": "def add(a, b): return float(a + b)",
        "returns a list around it": "def add(a, b): return [a + b]",
        "returns every candidate": "def add(a, b): return list(range(-100, 100))",
        "returns a generator of candidates": "def add(a, b): yield from range(100)",
        "returns a coroutine": "async def add(a, b): return a + b",
        "returns too much": "def add(a, b): return 'x' * 10_000_000",
        "returns a number of a million digits": "def add(a, b): return 10 ** 1_000_000",
        "returns a list inside itself": """
def add(a, b):
    x = []
    x.append(x)
    return x
""",
        "returns forged marks": "def add(a, b): return ['i', '0x3']",
        "returns the driver's own words": 'def add(a, b): return {"status": "value", "value": a + b}',
        "knows one test": "def add(a, b): return 3",
        "knows two tests": "def add(a, b): return {1: 3, -4: 0}.get(a)",
        "remembers earlier calls": """
seen = [3, 0, 12]
def add(a, b): return seen.pop(0)
""",
        "remembers earlier calls on disk": """
import os
def add(a, b):
    os.makedirs("/tmp/n", exist_ok=True)
    n = len(os.listdir("/tmp/n"))
    open(f"/tmp/n/{n}", "w").close()
    return [3, 0, 12][n]
""",
        "names another function": "def plus(a, b): return a + b",
        "names no function": "add = 3",
        "exits while loading": """
def add(a, b): return a + b
raise SystemExit(0)
""",
        "exits from the function": """
import sys
def add(a, b): sys.exit(0)
""",
        "prints the answer": "def add(a, b): print(a + b)",
        "exits without cleaning up when called": """
import os
def add(a, b): os._exit(0)
""",
        "prints a verdict when called": """
import os
def add(a, b):
    print('passed', flush=True)
    os._exit(0)
""",
        "writes to every descriptor when called": r"""
import json, os
def add(a, b):
    for fd in range(64):
        for line in (b'ready', json.dumps({"status": "pass"}).encode(), b'{"status": "value", "value": 999}'):
            try: os.write(fd, line + b"\n")
            except OSError: pass
    os._exit(0)
""",
        "walks frames for the expected value when called": """
import sys
def add(a, b):
    frame = sys._getframe()
    while frame:
        for place in (frame.f_locals, frame.f_globals):
            for name, value in list(place.items()):
                if "expected" in str(name) or "expected" in str(value): return value
        frame = frame.f_back
""",
        "searches memory for the expected value when called": """
import gc
def add(a, b):
    for thing in gc.get_objects():
        if isinstance(thing, dict) and "expected" in thing: return thing["expected"]
    return None
""",
        "patches json when called": """
import json
json.dumps = lambda *a, **k: '{"status": "pass", "verdict": "pass"}'
json.JSONEncoder.default = lambda self, o: 3
def add(a, b): return object()
""",
        "patches the driver's functions when called": """
import sys
main = sys.modules["__main__"]
for name in ("is_plain", "call_function", "describe"):
    setattr(main, name, lambda *a: True)
def add(a, b): return object()
""",
        "forges a word of its own as the outcome when called": """
import os
def add(a, b):
    os.pwrite(5, b'{"status": "wall_timeout"}', 0)
    for fd in range(3, 20):
        try: os.write(fd, b'{"status": "wall_timeout"}')
        except OSError: pass
    os._exit(0)
""",
        "kills the driver when called": """
import os, signal
def add(a, b): os.kill(os.getppid(), signal.SIGKILL)
""",
        "registers an exit handler when called": """
import atexit, os
atexit.register(lambda: print('3'))
def add(a, b): raise KeyboardInterrupt
""",
        "loops for ever when called": """
def add(a, b):
    while True: pass
""",
        "takes all memory when called": """
def add(a, b):
    x = []
    while True: x.append(bytearray(1 << 24))
""",
        "forks for ever when called": """
import os
def add(a, b):
    while True: os.fork()
""",
        "floods its output when called": """
def add(a, b):
    for _ in range(1000): print('x' * 100_000)
    return 0
""",
        "recurses for ever when called": "def add(a, b): return add(a, b)",
        "crashes when called": """
import ctypes
def add(a, b): return ctypes.string_at(0)
""",
    },
    "stdin": {
        "prints nothing": "pass",
        "prints every candidate": r"""
print(*range(-50, 200), sep='\n')
""",
        "prints its input": """
import sys
print(sys.stdin.read())
""",
        "prints to errors": """
import sys
print(sum(map(int, sys.stdin.read().split()[1:])), file=sys.stderr)
""",
        "knows one test": "print(6)",
        "prints the answer and then fails": """
input()
print(sum(map(int, input().split())), flush=True)
raise ValueError('no')
""",
        "prints the answer and then dies": """
import os
input()
print(sum(map(int, input().split())), flush=True)
os.abort()
""",
        "prints the answer and then another": """
input()
print(sum(map(int, input().split())))
print(0)
""",
        "prints null bytes around the answer": r"""
input()
print('\0', sum(map(int, input().split())), '\0')
""",
        "prints digits of another script": """
input()
print(''.join(chr(0x660 + int(d)) if d.isdigit() else d for d in str(sum(map(int, input().split())))))
""",
        "defines a function and never calls it": """
def main():
    input()
    print(sum(map(int, input().split())))
""",
    },
    "expression": {
        "returns an object that equals everything": """
class E:
    __eq__ = lambda s, o: True
def add(a, b): return E()
""",
        "patches the assert away": """
import builtins
builtins.AssertionError = SystemExit
def add(a, b): raise AssertionError
""",
        "turns optimisation on": """
__debug__ = False
def add(a, b): return 0
""",
        "changes what a call means": """
class add:
    def __new__(cls, a, b): return object.__new__(cls)
    __eq__ = lambda s, o: True
""",
    },
    "script": {
        "returns an object that equals everything": """
class E:
    __eq__ = lambda s, o: True
def add(a, b): return E()
""",
        "returns an int that equals everything": """
class E(int):
    __eq__ = lambda s, o: True
    __hash__ = int.__hash__
def add(a, b): return E(99)
""",
        "patches the assert away": """
import builtins
builtins.AssertionError = SystemExit
def add(a, b): return 99
""",
        "raises what a script may take for an end": "def add(a, b): raise StopIteration",
        "raises SystemExit when called": "def add(a, b): raise SystemExit(0)",
        "raises a name that is no exception": """
class print(Exception): pass
class bool(Exception): pass
def add(a, b): raise bool('x')
""",
        "hangs up": """
import os
def add(a, b): os.close(3); os._exit(0)
""",
        "forges replies": r"""
import os
os.write(3, b'{"value": 0}\n{"value": 3}\n{"value": 6}\n')
def add(a, b): os._exit(0)
""",
        "forges the outcome": """
import os
def add(a, b):
    for fd in range(3, 20):
        try: os.write(fd, b'{"status": "value", "value": true}')
        except OSError: pass
    os._exit(0)
""",
        "sends a malformed reply": r"""
import os
def add(a, b): os.write(3, b'{"value": ["l", 7]}\n'); os._exit(0)
""",
        "kills whoever asks": """
import os, signal
def add(a, b):
    for pid in range(2, 40):
        if pid != os.getpid():
            try: os.kill(pid, signal.SIGKILL)
            except OSError: pass
    return 0
""",
    },
}


def cheats() -> list[tuple[str, str, str]]:
    """(task, name, source) of every cheat."""
    found = [
        (task, name, f"{attack}\n{wrong}") for name, attack in ATTACKS.items() for task, wrong in WRONG_ANSWERS.items()
    ]
    return found + [(task, name, source) for task, named in CHEATS.items() for name, source in named.items()]


def each_attack_once() -> list[tuple[str, str, str]]:
    """(task, name, source): every attack on one of the tasks in turn, and every cheat that suits one task."""
    tasks, attacks = list(TASKS), set()
    for index, name in enumerate(ATTACKS):
        attacks.add((tasks[index % len(tasks)], name))
    return [row for row in cheats() if row[1] not in ATTACKS or row[:2] in attacks]
