"""Keys and tokens are found in text and told by kind alone; ordinary texts of the field are let through."""

import pytest

from pipeline.hub.secrets import KINDS, MARKS, find_secrets

LETTERS = "aB3dE5fG7hJ9kL1mN2pQ4rS6tU8vW0xY3zA5bC7d"
FOUND = {
    "hugging_face_token": f"token: hf_{LETTERS[:34]}",
    "openai_style_key": f"OPENAI_API_KEY=sk-proj-{LETTERS}",
    "github_token": f"ghp_{LETTERS[:36]}",
    "gitlab_token": f"glpat-{LETTERS[:20]}",
    "aws_access_key": "AKIA" + LETTERS[:16].upper(),
    "google_api_key": f"AIza{LETTERS[:35]}",
    "slack_token": "xoxb-123456789012-abcdef",
    "json_web_token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    "private_key": "-----BEGIN RSA PRIVATE KEY-----",
    "bearer_token": f"Authorization: Bearer {LETTERS}",
    "password_in_url": "postgres://admin:hunter22@db.example.org/x",
}
HARMLESS = (
    "def solve(hf_model): return hf_model",
    "the bearer of these considerations, and bearer instruments",
    "task-oriented and risk-adjusted sk-learn pipelines",
    "https://example.org:8080/path@home and user@example.org",
    "-----BEGIN PUBLIC KEY-----",
    "AKIA is a prefix; eyJ begins many tokens",
    "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
)


def test_every_kind_has_an_example():
    assert FOUND.keys() == KINDS.keys() == MARKS.keys()


@pytest.mark.parametrize("kind", FOUND)
def test_a_secret_is_found_inside_other_text(kind):
    assert list(find_secrets(f"before\n{FOUND[kind]} after")) == [kind]


@pytest.mark.parametrize("text", HARMLESS)
def test_ordinary_text_is_let_through(text):
    assert list(find_secrets(text)) == []


def test_the_token_in_use_is_found_whatever_it_looks_like():
    assert list(find_secrets("x odd-token y", own="odd-token")) == ["token_in_use"]
    assert list(find_secrets("anything", own="")) == []
