"""Make a recipe of your own from an existing one, with your own tasks where you have a file of them.

Writes configs/NAME/ (a copy of the recipe's configs, recipe.yaml, a link to dvc.yaml) and the data card
data_cards/NAME.md. With --tasks also sources/NAME/tasks.jsonl and a tasks.yaml that reads it; its columns are detected
and said, and nothing else is collected. Run it in the root of the repository.

    warmstart new sums --from demo --tasks ~/sums.jsonl --license CC-BY-4.0
"""

import argparse
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config import load_yaml
from pipeline.errors import UserError

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
PROMPTS = ("prompt", "question", "problem", "instruction", "query", "input", "messages", "conversation")
ANSWERS = ("answer", "final_answer", "expected_answer", "ground_truth", "gold", "solution", "target", "label", "output")
CARDS = Path("data_cards")
LOOKED_AT = 200
"""Rows that the columns are detected from."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The new name, what to copy, and the user's own tasks."""
    parser.add_argument("name", metavar="NAME", help="small letters, digits, - and _")
    parser.add_argument("--from", dest="recipe", metavar="RECIPE", required=True, help="a folder in configs/, or demo")
    parser.add_argument("--tasks", metavar="FILE.jsonl", type=Path, help="your tasks, one JSON object a line")
    parser.add_argument("--license", metavar="SPDX", default="unknown", help="licence of your tasks (default unknown)")


@dataclass(frozen=True, slots=True)
class Detected:
    """Which columns of a file ask and which decide."""

    verifier: str
    columns: dict[str, str]
    """Our name to the file's name."""
    rows: int


def run(arguments: argparse.Namespace) -> int:
    """Make the recipe and print what to run next. Raises UserError before anything is written."""
    name, recipe = arguments.name, arguments.recipe
    check_name(name)
    about = recipe_file(recipe)
    detected = detect_columns(arguments.tasks) if arguments.tasks else None
    folder = Path("configs") / name
    staged = folder.with_name(f".{name}.new")
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir()
    try:
        said = copy_configs(recipe, name, staged, detected)
        write_recipe(about, name, staged, own_sources=detected is not None)
        if detected:
            write_tasks(staged / "tasks.yaml", name, arguments.license, detected)
            sources = Path("sources") / name
            sources.mkdir(parents=True)
            shutil.copyfile(arguments.tasks, sources / "tasks.jsonl")
            (staged / "collect.yaml").write_text("# No set of others is collected.\nsources: []\n", encoding="utf-8")
        write_card(name, recipe, arguments.license if detected else None)
        staged.rename(folder)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        if detected:
            shutil.rmtree(Path("sources") / name, ignore_errors=True)
        (CARDS / f"{name}.md").unlink(missing_ok=True)
        raise
    print(f"made configs/{name}/ from {recipe}" + (f" and sources/{name}/tasks.jsonl" if detected else ""))
    for line in (*(_told(detected, arguments.license) if detected else ()), *said):
        print(f"  {line}")
    print(f"  data_cards/{name}.md: the card of the published set; its prose is yours to write")
    print("next:")
    print(f"  dvc repro configs/{name}/dvc.yaml:tasks     # read the tasks; a second or two")
    print(f"  warmstart peek data/{name}/tasks            # see them")
    print(f"  dvc repro configs/{name}/dvc.yaml           # the whole line")
    return 0


def check_name(name: str) -> None:
    """Raise UserError for a name that cannot be a folder, a recipe of that name, or the wrong working folder."""
    if not Path("dvc.yaml").is_file() or not Path("configs").is_dir():
        raise UserError("there is no dvc.yaml and configs/ here; run this in the root of the repository")
    if not NAME.fullmatch(name):
        raise UserError(f"NAME {name!r}: use small letters, digits, - and _, beginning with a letter or digit")
    for folder in (Path("configs") / name, Path("sources") / name, Path("data") / name, CARDS / f"{name}.md"):
        if folder.exists():
            raise UserError(f"{folder} exists already; choose another name, or remove it")


def recipe_file(recipe: str) -> Path:
    """The recipe.yaml of a recipe: the demo's stands in the root. Raises UserError if there is none of that name."""
    for path in (Path("configs") / recipe / "recipe.yaml", Path("recipe.yaml")):
        if path.is_file() and load_yaml(path).get("recipe") == recipe:
            return path
    known = sorted(
        {
            str(load_yaml(path).get("recipe"))
            for path in (*Path("configs").glob("*/recipe.yaml"), Path("recipe.yaml"))
            if path.is_file()
        }
    )
    raise UserError(f"--from {recipe}: there is no such recipe; there are {', '.join(known)}")


def copy_configs(recipe: str, name: str, folder: Path, detected: Detected | None) -> list[str]:
    """Copy the stages' configs with their own paths; returns what the user should know."""
    said = []
    for path in sorted((Path("configs") / recipe).glob("*.yaml")):
        if path.name in ("recipe.yaml", "dvc.yaml") or (detected and path.name == "tasks.yaml"):
            continue
        text = path.read_text(encoding="utf-8")
        text = re.sub(rf"\b(data|reports)/{re.escape(recipe)}(?![\w-])", rf"\1/{name}", text)
        if detected:
            own, count = re.subn(r"(?m)^(\s*domains:) \[[^\]\n]*\]", rf"\1 [{detected.verifier}]", text)
            if count:
                said.append(f"{path.name}: domains set to [{detected.verifier}], the domain of your tasks")
            text = own
        (folder / path.name).write_text(text, encoding="utf-8")
    return said


def write_recipe(about: Path, name: str, folder: Path, own_sources: bool) -> None:
    """recipe.yaml with the new name, and the link to the one dvc.yaml."""
    changes = {"recipe": name, "root": "../.."} | ({"sources": name} if own_sources else {})
    lines = [f"# The recipe {name}. `dvc repro configs/{name}/dvc.yaml`"]
    body = about.read_text(encoding="utf-8").splitlines()
    while body and body[0].startswith("#"):
        body.pop(0)
    for line in body:
        key = line.partition(":")[0]
        lines.append(f"{key}: {changes.pop(key)}" if key in changes else line)
    lines += [f"{key}: {value}" for key, value in changes.items()]
    (folder / "recipe.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "dvc.yaml").symlink_to("../../dvc.yaml")


def write_card(name: str, recipe: str, license_: str | None) -> None:
    """The data card: for tasks of one's own from the template, else the copied recipe's."""
    own = license_ is not None
    text = (CARDS / ("template.md" if own else f"{recipe}.md")).read_text(encoding="utf-8")
    if license_ is not None:
        text = text.replace("{NAME}", name).replace("{LICENSE}", license_.lower())
    (CARDS / f"{name}.md").write_text(text, encoding="utf-8")


def write_tasks(file: Path, name: str, license_: str, detected: Detected) -> None:
    """tasks.yaml with the user's file as its only source."""
    renamed = {ours: theirs for ours, theirs in detected.columns.items() if ours != theirs}
    lines = [
        f"# Tasks of the recipe {name}; `warmstart tasks --help` explains each key.",
        "heldout_fraction: 0.2",
        "sources:",
        "  - type: jsonl",
        f"    name: {name}",
        f"    domain: {detected.verifier}",
        f"    verifier: {detected.verifier}",
        f"    license: {json.dumps(license_)}",
        "    path: tasks.jsonl",
    ]
    if renamed:
        lines.append("    columns: {" + ", ".join(f"{k}: {json.dumps(v)}" for k, v in renamed.items()) + "}")
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _told(detected: Detected, license_: str) -> list[str]:
    found = ", ".join(f"{ours} = `{theirs}`" for ours, theirs in detected.columns.items())
    lines = [f"{detected.rows} rows; columns: {found}; judged by the verifier {detected.verifier}"]
    if license_ == "unknown":
        lines.append("licence: unknown; say it with --license or in tasks.yaml before you publish")
    return lines


def detect_columns(path: Path) -> Detected:
    """Find the columns by name and content. Raises UserError for a file without rows, or without such columns."""
    rows, count = read_some(path)
    columns = sorted({key for row in rows for key in row})
    asking = _first(rows, PROMPTS, _is_question)
    verifier, deciding = _deciding(rows)
    if not asking or not deciding:
        lacking = "a question" if not asking else "an answer"
        raise UserError(
            f"{path}: found no column with {lacking}; name it `{'prompt' if not asking else 'answer'}` (or use "
            f"function and tests, or constraints); the columns are: {', '.join(columns) or 'none'}"
        )
    ours = "messages" if all(isinstance(row.get(asking), list) for row in rows if asking in row) else "prompt"
    return Detected(verifier, {ours: asking, **deciding}, count)


def _deciding(rows: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, str]]:
    """The verifier and the columns that it reads; no columns where there is no answer to be found."""
    for verifier, needed in {"code": ("function", "tests"), "instruction": ("constraints",)}.items():
        if all(_share(rows, key, lambda value: value is not None) for key in needed):
            return verifier, {key: key for key in needed}
    answer = _first(rows, ANSWERS, _is_answer)
    return "math", {"answer": answer} if answer else {}


def read_some(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The first rows of a JSONL file that are objects, and the number of its rows."""
    if not path.is_file():
        raise UserError(f"--tasks {path}: is no file; give a file with one JSON object a line")
    rows: list[dict[str, Any]] = []
    count = bad = 0
    with path.open("rb") as file:
        for line in file:
            if not line.strip():
                continue
            count += 1
            if len(rows) < LOOKED_AT:
                try:
                    value = json.loads(line.decode("utf-8-sig"))
                except (ValueError, RecursionError):
                    value = None
                if isinstance(value, dict):
                    rows.append(value)
                else:
                    bad += 1
    if not rows:
        found = f"none of its {count} lines is a JSON object in UTF-8" if bad else "it is empty"
        raise UserError(f"--tasks {path}: {found}; write one JSON object a line")
    return rows, count


def _first(rows: Sequence[Mapping[str, Any]], names: Sequence[str], test: Any) -> str | None:  # noqa: ANN401 - a function
    return next((name for name in names if _share(rows, name, test)), None)


def _share(rows: Sequence[Mapping[str, Any]], name: str, test: Any) -> bool:  # noqa: ANN401 - a function
    """Whether a column fits in at least half of the rows; the others are rejected one by one when tasks are made."""
    return 2 * sum(bool(name in row and test(row[name])) for row in rows) >= len(rows)


def _is_question(value: object) -> bool:
    return (isinstance(value, str) and bool(value.strip())) or (isinstance(value, list) and bool(value))


def _is_answer(value: object) -> bool:
    return (isinstance(value, str) and bool(value.strip())) or (
        isinstance(value, int | float) and not isinstance(value, bool)
    )
