"""Configs refuse what they do not know, and say where, what and how to mend it."""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from pipeline.config import Machine, StageConfig, StrictModel, load_config, load_machine
from pipeline.errors import UserError


class Local(StrictModel):
    type: Literal["local"]
    path: str


class Remote(StrictModel):
    type: Literal["remote"]
    url: str


class Sampling(StrictModel):
    temperature: float = Field(0.7, ge=0)
    max_tokens: int = 10


class Config(StageConfig):
    sampling: Sampling = Sampling()
    sources: list[Annotated[Local | Remote, Field(discriminator="type")]] = Field(default_factory=list)
    rate: float = 0.1


@pytest.fixture
def load(tmp_path):
    def loader(text: str, *overrides: str) -> Config:
        path = tmp_path / "stage.yaml"
        path.write_text(text)
        return load_config(Config, path, overrides)

    return loader


def refusal(load, text: str, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load(text, *overrides)
    return str(caught.value)


def test_empty_file_gives_the_defaults(load):
    assert load("") == Config()


def test_unknown_key_names_file_key_and_what_is_allowed(load):
    text = refusal(load, "sampling: {temprature: 1}")
    assert "stage.yaml: sampling.temprature" in text
    assert "allowed here: max_tokens, temperature" in text


@pytest.mark.parametrize(
    ("source", "allowed"),
    [("{type: local, path: a, pth: b}", "path, type"), ("{type: remote, url: a, pth: b}", "type, url")],
)
def test_unknown_key_of_a_variant_names_the_keys_of_that_variant(load, source, allowed):
    assert f"allowed here: {allowed}" in refusal(load, f"sources: [{source}]")


def test_all_problems_are_told_at_once(load):
    text = refusal(load, "rate: fast\nsampling: {temperature: -1}\nmax_rejectd: 0.1")
    assert len(text.splitlines()) == 3
    for expected in ("rate", "'fast'", "sampling.temperature", "greater than or equal to 0", "max_rejectd"):
        assert expected in text


def test_missing_key_is_named(load):
    assert "sources.0.local.path: Field required" in refusal(load, "sources: [{type: local}]")


def test_unknown_variant_names_the_variants(load):
    text = refusal(load, "sources: [{type: loca, path: a}]")
    assert "'local'" in text and "'remote'" in text


@pytest.mark.parametrize("text", ["rate: 0.1\nrate: 0.2", "sampling:\n  max_tokens: 1\n  max_tokens: 2"])
def test_a_key_that_stands_twice_is_refused_with_its_line(load, text):
    message = refusal(load, text)
    assert "stands twice" in message and "line" in message


@pytest.mark.parametrize("text", ["[1, 2]", "just text", "a: [", "a: \x00", "? [1]\n: 2"])
def test_what_is_no_mapping_is_refused_with_the_file(load, text):
    assert "stage.yaml" in refusal(load, text)


def test_text_that_is_not_utf_8_is_refused(tmp_path):
    path = tmp_path / "stage.yaml"
    path.write_bytes(b"a: \xff")
    with pytest.raises(UserError, match=r"stage\.yaml.*UTF-8"):
        load_config(Config, path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.yaml: no such config file"):
        load_config(Config, tmp_path / "none.yaml")


def test_a_folder_is_no_config(tmp_path):
    with pytest.raises(UserError):
        load_config(Config, tmp_path)


def test_exponent_without_a_dot_is_a_number(load):
    # PyYAML reads 1e-4 as text.
    assert load("rate: 1e-4").rate == 1e-4
    assert load("", "rate=1e-4").rate == 1e-4


def test_code_in_yaml_is_refused(load):
    assert "stage.yaml" in refusal(load, "rate: !!python/object/apply:os.getcwd []")


def test_overrides_reach_nested_keys_and_list_entries(load):
    config = load(
        "sources: [{type: local, path: a}]", "sampling.temperature=0.2", "sources.0.path=b", "limit=3", "seed=7"
    )
    assert config.sampling == Sampling(temperature=0.2)
    assert config.sources == [Local(type="local", path="b")]
    assert (config.limit, config.seed) == (3, 7)


def test_override_can_make_a_block_and_replace_a_list(load):
    assert load("", "sampling.max_tokens=4").sampling.max_tokens == 4
    assert load("sources: [{type: local, path: a}]", "sources=[]").sources == []


@pytest.mark.parametrize(
    "override",
    [
        "rate",
        "=1",
        "rate.x=1",
        "sources.1={type: local, path: a}",
        "sources.3.path=b",
        "sources.first.path=b",
        "rate=[",
        "nothing=1",
    ],
)
def test_a_bad_override_is_refused_by_name(load, override):
    assert override.partition("=")[0].split(".")[0] in refusal(
        load, "rate: 0.1\nsources: [{type: local, path: a}]", override
    )


def test_configs_cannot_be_changed():
    with pytest.raises(ValueError):
        Config().seed = 3


def test_unknown_machine_names_those_there_are(monkeypatch):
    monkeypatch.setenv("WARMSTART_MACHINE", "nowhere")
    with pytest.raises(UserError, match=r"nowhere.*local"):
        load_machine()


def test_machine_may_be_a_path(monkeypatch, tmp_path):
    (tmp_path / "big.yaml").write_text("workers: 64")
    monkeypatch.setenv("WARMSTART_MACHINE", str(tmp_path / "big.yaml"))
    assert load_machine() == Machine(workers=64)
