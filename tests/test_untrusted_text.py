"""Nothing that came from a model or a file is evaluated outside the box: the source is searched for every way to do it.

Every use has to be on a list with its reason, and the list holds nothing that is not used.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(path for folder in ("pipeline", "stages", "benchmarks") for path in (ROOT / folder).rglob("*.py"))

CALLS = frozenset(
    {"eval", "exec", "compile", "__import__", "execfile", "parse_expr", "sympify", "parse_latex", "latex2sympy"}
    | {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "code.interact", "runpy.run_path"}
    | {"yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "yaml.unsafe_load_all", "run_module"}
    | {"Unpickler", "read_pickle", "genops", "math_verify.parse", "math_verify.verify", "literal_eval"}
)
"""Calls by their name, or by the end of their dotted name."""
MODULES = frozenset(
    {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle", "pickletools"}
)
"""Modules that can load objects."""
KEYWORDS = {"shell": True, "trust_remote_code": True, "allow_pickle": True, "weights_only": False}

METHOD_NAMES = frozenset({"eval", "exec", "compile"})
"""Builtins whose names methods bear as well, such as re.compile and model.eval()."""

BOX = "runs inside the box, where the untrusted program runs as well"
ALLOWED: dict[tuple[str, str], str] = {
    ("pipeline/verify/code/boxed/work.py", "exec"): BOX,
    ("pipeline/verify/code/boxed/work.py", "compile"): BOX,
    ("pipeline/verify/code/boxed/work.py", "eval"): BOX,
    ("pipeline/sandbox/forkserver.py", "exec"): BOX,
    ("pipeline/sandbox/forkserver.py", "compile"): BOX,
    ("benchmarks/verify_math.py", "math_verify.parse"): "the peer, in processes that are killed, on labelled data",
    ("benchmarks/verify_math.py", "math_verify.verify"): "the peer, in processes that are killed, on labelled data",
    ("pipeline/verify/code/packed.py", "import pickletools"): "names the opcodes of a pickle and runs none of them",
    ("pipeline/verify/code/packed.py", "genops"): "names the opcodes of a pickle and runs none of them",
    ("pipeline/verify/code/asserts.py", "literal_eval"): "takes literals apart and calls nothing",
    ("pipeline/config/base.py", "yaml.load"): "by a subclass of SafeLoader, which makes plain values only",
    (
        "pipeline/verify/math/equality.py",
        "math_verify.parse",
    ): "LaTeX by a grammar, in a process with limits that is killed",
    ("pipeline/verify/math/equality.py", "math_verify.verify"): "compares two parsed expressions, in that same process",
}


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a name or an attribute, empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}".lstrip(".")
    return ""


def full_names(tree: ast.AST) -> dict[str, str]:
    """Names that imports give, with what they stand for."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update({alias.asname: alias.name for alias in node.names if alias.asname})
        elif isinstance(node, ast.ImportFrom):
            names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return names


def is_call(name: str, call: str) -> bool:
    """Whether a dotted name is such a call; a method that bears the name of a builtin is none."""
    if call in METHOD_NAMES:
        return name in (call, f"builtins.{call}")
    return name == call or name.endswith(f".{call}")


def ways_to_evaluate(source: str) -> Iterator[str]:
    """Every call, reference, import and keyword in a source that can run what it is given."""
    tree = ast.parse(source)
    names = full_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (f"import {name.split('.')[0]}" for name in modules if name.split(".")[0] in MODULES)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            name = dotted(node)
            head, _, rest = name.partition(".")
            name = ".".join(filter(None, (names.get(head, head), rest)))
            yield from (call for call in CALLS if is_call(name, call))
        elif isinstance(node, ast.keyword) and node.arg in KEYWORDS:
            harmless = isinstance(node.value, ast.Constant) and node.value.value is not KEYWORDS[node.arg]
            if not harmless:
                yield f"{node.arg}={ast.unparse(node.value)}"


def found_in(path: Path) -> set[tuple[str, str]]:
    return {(str(path.relative_to(ROOT)), way) for way in ways_to_evaluate(path.read_text())}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_text_is_evaluated_outside_the_box(path: Path):
    assert found_in(path) - ALLOWED.keys() == set()


def test_every_exception_is_used_and_has_a_reason():
    assert ALLOWED.keys() <= set().union(*map(found_in, FILES))
    assert all(reason.strip() for reason in ALLOWED.values())


@pytest.mark.parametrize(
    "source",
    [
        "eval(x)",
        "exec(x)",
        "f = eval",
        "map(eval, xs)",
        "import builtins\nbuiltins.exec(x)",
        "compile(x, 'x', 'exec')",
        "import pickle",
        "from pickle import loads as read",
        "import dill as json",
        "def f():\n    import cloudpickle",
        "import pandas as pd\npd.read_pickle(x)",
        "import subprocess\nsubprocess.run(x, shell=True)",
        "run(x, shell=flag)",
        "import os\nos.system(x)",
        "from os import system\nsystem(x)",
        "from sympy import sympify as number\nnumber(x)",
        "import sympy\nsympy.parsing.sympy_parser.parse_expr(x)",
        "from math_verify import parse\nparse(x)",
        "import math_verify as mv\nmv.parse(x)",
        "import yaml\nyaml.load(x, Loader=yaml.Loader)",
        "import torch\ntorch.load(x, weights_only=False)",
        "load(x, allow_pickle=True)",
        "AutoModel.from_pretrained(x, trust_remote_code=True)",
    ],
)
def test_the_search_finds_every_way(source: str):
    assert list(ways_to_evaluate(source))


@pytest.mark.parametrize(
    "source",
    [
        "import re\nre.compile(x)",
        "model.eval()",
        "import yaml\nyaml.safe_load(x)",
        "import json\njson.loads(x)",
        "subprocess.run(x, shell=False)",
        "parse(x)",
        "torch.load(x, weights_only=True)",
    ],
)
def test_the_search_lets_harmless_calls_be(source: str):
    assert list(ways_to_evaluate(source)) == []
