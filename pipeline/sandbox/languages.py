"""Programs in C++ and JavaScript: the arguments that compile and run a source in the box."""

import os
import shutil
from dataclasses import dataclass
from typing import Literal

from pipeline.errors import UserError
from pipeline.sandbox.limits import BoxLimits

Language = Literal["cpp", "javascript"]
MAX_SOURCE_BYTES = 120_000
"""Of one argument; the kernel takes 128 KiB."""
NOT_COMPILED = 125
"""Exit code of a C++ program that the compiler refused; its messages are on stderr."""
_FOUND_BY: dict[Language, tuple[str, ...]] = {"cpp": ("g++", "clang++"), "javascript": ("node", "nodejs")}
_COMPILE = (
    'printf %s "$1" >program.cpp && "$0" -std=c++17 -O2 -o program program.cpp || exit '
    f"{NOT_COMPILED}\nrm program.cpp && exec ./program"
)


@dataclass(frozen=True, slots=True)
class Program:
    """What `run_boxed` takes to run a source."""

    argv: list[str]
    limits: BoxLimits


def compiler_of(language: Language) -> str | None:
    """The compiler or runtime of a language that every user can run, or None."""
    for name in _FOUND_BY[language]:
        found = shutil.which(name, path="/usr/local/bin:/usr/bin:/bin")
        if found:
            return os.path.realpath(found)
    return None


def toolchains() -> tuple[str, ...]:
    """Files and folders that compilers and runtimes need beside the shared libraries, where they exist."""
    runtimes = [path for path in (compiler_of("cpp"), compiler_of("javascript")) if path]
    outside = [path for path in runtimes if not path.startswith("/usr/bin/")]
    folders = [path for path in ("/usr/bin", "/usr/include", "/usr/libexec") if os.path.isdir(path)]
    return (*folders, *outside)


def program(language: Language, source: str, limits: BoxLimits) -> Program:
    """How to run a source; compiling happens in the same box, within the same limits.

    Raises UserError where no compiler or runtime is installed, ValueError for a source above MAX_SOURCE_BYTES.
    """
    if len(source.encode()) > MAX_SOURCE_BYTES:
        raise ValueError(f"the source has {len(source.encode())} bytes, at most {MAX_SOURCE_BYTES} fit an argument")
    found = compiler_of(language)
    if found is None:
        raise UserError(
            f"sandbox: no compiler or runtime for {language} ({', '.join(_FOUND_BY[language])}) in /usr/bin; "
            f"install it: sudo apt-get install --yes {'g++' if language == 'cpp' else 'nodejs'}"
        )
    if language == "cpp":
        return Program(["/usr/bin/sh", "-c", _COMPILE, found, source], limits)
    heap = f"--max-old-space-size={max(32, limits.memory_mb * 3 // 4)}"
    # Its TLS library reads a configuration that is not there, and ends where it may not even look.
    return Program(
        [found, "--openssl-config=/dev/null", heap, "-e", source], limits.model_copy(update={"address_space": False})
    )
