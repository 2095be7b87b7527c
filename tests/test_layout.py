"""One word a stage in every place, imports that point one way, DVC deps that are true, and small files."""

import ast
import importlib
import itertools
from pathlib import Path

import pytest
import yaml

from pipeline.cli.main import stage_names
from pipeline.config import load_config
from pipeline.work import stage_sources

ROOT = Path(__file__).resolve().parents[1]
STAGES = stage_names()
OURS = sorted(path for folder in ("pipeline", "stages", "benchmarks") for path in (ROOT / folder).rglob("*.py"))
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 60
LOADS_STAGES_BY_NAME = ROOT / "pipeline/cli/main.py"


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports_of(path: Path, module_level: bool = False) -> set[str]:
    """Dotted names that a file imports, `a.b` for `from a import b`; at module level only what loading it loads."""
    tree = ast.parse(path.read_text())
    found: set[str] = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}: relative import"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif module_level and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        waiting.extend(ast.iter_child_nodes(node))
    return found


def stage_in_dvc(stage: str) -> dict:
    entry = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"][stage]
    return entry["do"] if "foreach" in entry else entry


def test_our_code_is_the_code_that_is_imported():
    assert Path(importlib.import_module("pipeline").__file__).is_relative_to(ROOT)
    assert not list((ROOT / "tests").rglob("__init__.py"))


@pytest.mark.parametrize("recipe", ["demo", "smoke"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_has_a_config_of_its_name_that_loads(stage, recipe):
    module = importlib.import_module(f"stages.{stage}")
    load_config(module.Config, ROOT / f"configs/{recipe}/{stage}.yaml")


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_has_tests_and_a_shape(stage):
    assert (ROOT / f"tests/stages/test_{stage}.py").is_file()
    module = importlib.import_module(f"stages.{stage}")
    assert module.__doc__ and callable(module.run)
    assert all(field.description for field in module.Config.model_fields.values()), "a config key lacks its docstring"


@pytest.mark.parametrize("stage", STAGES)
def test_dvc_runs_a_stage_with_its_config_as_params(stage):
    entry = stage_in_dvc(stage)
    config = f"configs/${{recipe}}/{stage}.yaml"
    assert config in [name for item in entry["params"] for name in (item if isinstance(item, dict) else [item])]
    command = entry["cmd"].split()
    assert command[command.index("--config") + 1] == config
    module = importlib.import_module(f"stages.{stage}")
    given = {word.partition("=")[0] for before, word in itertools.pairwise(command) if before == "--in"}
    assert set(module.INPUTS) <= given <= {*module.INPUTS, *getattr(module, "OPTIONAL_INPUTS", {})}


@pytest.mark.parametrize("stage", STAGES)
def test_dvc_deps_cover_every_source_file_that_a_stage_runs(stage):
    deps = [ROOT / dep for dep in stage_in_dvc(stage)["deps"] if "${" not in dep]
    missing = [name_of(file) for file in stage_sources(stage) if not any(file.is_relative_to(dep) for dep in deps)]
    assert not missing, f"dvc.yaml: stages.{stage}.deps lacks these"
    assert all(dep.exists() for dep in deps)


@pytest.mark.parametrize("path", OURS, ids=name_of)
def test_imports_point_one_way(path):
    imported = {name.split(".")[0] for name in imports_of(path)}
    if path.is_relative_to(ROOT / "pipeline"):
        assert not {"stages", "benchmarks", "tests"} & imported
        assert path == LOADS_STAGES_BY_NAME or "import_module" not in path.read_text()
    elif path.is_relative_to(ROOT / "stages"):
        assert not {"stages", "benchmarks", "tests"} & imported


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_module_of_the_pipeline_imports_itself_round_a_corner():
    files = {module_of(path): path for path in OURS if path.is_relative_to(ROOT / "pipeline")}

    def loaded_by(module: str) -> set[str]:
        """Modules that loading this one loads; a module of another package brings that package's __init__."""
        found = set()
        for name in imports_of(files[module], module_level=True):
            target = name if name in files else name.rpartition(".")[0]
            package = target.rpartition(".")[0]
            found |= {target} if module.startswith(package) else {target, package}
        return found & files.keys() - {module}

    needs = {module: loaded_by(module) for module in files}
    while free := [module for module, needed in needs.items() if not needed & needs.keys()]:
        for module in free:
            del needs[module]
    assert not needs, "import cycle"


@pytest.mark.parametrize("package", ["records", "config", "errors"])
def test_the_lowest_layers_import_nothing_of_ours_above_them(package):
    allowed = {"errors": set(), "records": {"errors", "records"}, "config": {"errors", "config"}}[package]
    base = ROOT / "pipeline" / package
    for path in [base.with_suffix(".py")] if base.with_suffix(".py").exists() else base.rglob("*.py"):
        ours = {name.split(".")[1] for name in imports_of(path) if name.startswith("pipeline.")}
        assert ours <= allowed, name_of(path)


@pytest.mark.parametrize("package", ["verify", "sandbox"])
def test_what_ships_inside_environments_needs_neither_dask_nor_pyarrow(package):
    for path in (ROOT / "pipeline" / package).rglob("*.py"):
        imported = imports_of(path)
        assert not {"dask", "distributed", "pyarrow"} & {name.split(".")[0] for name in imported}, name_of(path)
        ours = {name.split(".")[1] for name in imported if name.startswith("pipeline.")}
        assert not {"records", "shards", "cluster"} & ours, name_of(path)


@pytest.mark.parametrize("path", OURS, ids=name_of)
def test_files_and_functions_stay_small(path):
    assert len(path.read_text().splitlines()) <= MAX_FILE_LINES
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = node.end_lineno - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{name_of(path)}:{node.lineno} {node.name} has {length} lines"


@pytest.mark.parametrize("path", OURS, ids=name_of)
def test_every_module_says_what_it_is_for(path):
    assert ast.get_docstring(ast.parse(path.read_text())), name_of(path)
