"""Find keys and tokens in text. What was found is told by its kind and place, never by its content."""

import re
from collections.abc import Iterator, Mapping

MARKS: Mapping[str, tuple[str, ...]] = {
    "hugging_face_token": ("hf_", "api_org_"),
    "openai_style_key": ("sk-",),
    "github_token": ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
    "gitlab_token": ("glpat-",),
    "aws_access_key": ("AKIA", "ASIA"),
    "google_api_key": ("AIza",),
    "slack_token": ("xox",),
    "json_web_token": ("eyJ",),
    "private_key": ("PRIVATE KEY",),
    "bearer_token": ("earer",),
    "password_in_url": ("://",),
}
"""Texts without any of a kind's marks are never given to its pattern: a search for a mark is far quicker."""
KINDS: Mapping[str, re.Pattern[str]] = {
    "hugging_face_token": re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{30,}\b"),
    "openai_style_key": re.compile(r"\bsk-(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{20,}"),
    "github_token": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{40,})"),
    "gitlab_token": re.compile(r"\bglpat-[A-Za-z0-9_-]{20,}"),
    "aws_access_key": re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    "google_api_key": re.compile(r"\bAIza[A-Za-z0-9_-]{35}"),
    "slack_token": re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}"),
    "json_web_token": re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    "private_key": re.compile(r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"),
    "bearer_token": re.compile(r"\b[Bb]earer\s+(?=[A-Za-z._~+/-]*\d)[A-Za-z0-9._~+/-]{20,}"),
    "password_in_url": re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s/:@]+:[^\s/:@]{3,}@[^\s/]+"),
}


def find_secrets(text: str, own: str | None = None) -> Iterator[str]:
    """Kinds of secrets in a text; `own` is the token in use, which is looked for as it stands."""
    if own and own in text:
        yield "token_in_use"
    for kind, pattern in KINDS.items():
        if any(mark in text for mark in MARKS[kind]) and pattern.search(text):
            yield kind
