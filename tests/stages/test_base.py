"""The base checkpoint: from a folder, from a package, and the refusals."""

import json

import pytest
from safetensors import safe_open

from pipeline.errors import UserError
from stages.base import Config, GgufPackage, find_in_package, run
from tests.tiny_models import write_tiny_llama


def from_folder(path, dtype="bfloat16"):
    return Config.model_validate({"source": {"type": "directory", "path": path}, "dtype": dtype})


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A distribution on the path whose code would fail if it ran."""
    info = tmp_path / "site" / "carrier-1.0.dist-info"
    info.mkdir(parents=True)
    (tmp_path / "site" / "carrier").mkdir()
    (tmp_path / "site" / "carrier" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "site" / "carrier" / "tiny.gguf").write_bytes(b"GGUF")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
    (info / "RECORD").write_text("carrier/__init__.py,,\ncarrier/tiny.gguf,,\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    return tmp_path / "site" / "carrier" / "tiny.gguf"


def package_source(**values):
    return GgufPackage.model_validate(
        {"type": "gguf_package", "package": "carrier", "file": "tiny.gguf", "version": "1.0", **values}
    )


def test_a_folder_is_written_in_the_wanted_format_and_loads_with_its_template(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = write_tiny_llama(tmp_path / "source")
    report = run(from_folder(source), {}, tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", local_files_only=True)
    assert report["parameters"] == model.num_parameters()
    assert report["bytes"] == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template
    assert json.loads((tmp_path / "out/generation_config.json").read_text())["eos_token_id"] == 0
    with safe_open(tmp_path / "out/model.safetensors", "pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"BF16"}  # noqa: SIM118


def test_a_file_inside_a_package_is_found_without_importing_it(package):
    assert find_in_package(package_source()) == package


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"package": "no-such-package"}, "not installed"),
        ({"version": "2.0"}, r"carrier 1\.0 is installed, not 2\.0"),
        ({"file": "other.gguf"}, "holds tiny.gguf, not other.gguf"),
    ],
)
def test_a_package_that_lacks_something_is_a_user_error(package, values, message):
    with pytest.raises(UserError, match=message):
        find_in_package(package_source(**values))


def test_a_folder_that_is_no_model_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="is no folder"):
        run(from_folder(tmp_path / "none"), {}, tmp_path / "out")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"lacks tokenizer_config\.json, \*\.safetensors"):
        run(from_folder(tmp_path), {}, tmp_path / "out")
