#!/usr/bin/env bash
# Set up what a command needs, once: `scripts/setup.sh pipeline|serving|system [cpu|cuda]`. Called by the Makefile.
# Safe to interrupt and to repeat: an environment counts only once its file `ready` is written, last.
set -euo pipefail
cd "$(dirname "$0")/.."
part=$1 device=${2:-cpu}
uv_version=0.13.9
# Wheels that the machine's pip is told to look for on disk are found here too.
export UV_FIND_LINKS="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}" UV_LINK_MODE="${UV_LINK_MODE:-}"
[ -n "$UV_FIND_LINKS" ] || unset UV_FIND_LINKS
[ -n "$UV_LINK_MODE" ] || unset UV_LINK_MODE

fail() { printf '\nset-up: %s\n' "$*" >&2; exit 1; }

find_python() {
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "needs Python 3.11, 3.12 or 3.13 and found none; install it (Debian: apt-get install python3 python3-venv)" \
        "or name it: make setup PYTHON=/path/to/python3.11"
}

need_packages() { # package:probe ...
    local missing=() pair
    for pair in "$@"; do
        command -v "${pair#*:}" >/dev/null || missing+=("${pair%%:*}")
    done
    python_venv_works || missing+=(python3-venv)
    [ ${#missing[@]} -eq 0 ] && return
    local install="apt-get install -y --no-install-recommends ${missing[*]}"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "set-up: installing system packages: ${missing[*]}"
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive $install -qq; } >/dev/null ||
            fail "apt-get could not install ${missing[*]}; run it by hand: $install"
    else
        fail "system packages are missing: ${missing[*]}. Install them with: sudo $install"
    fi
}

python_venv_works() { "$(find_python)" -c 'import ensurepip, venv' 2>/dev/null; }

make_environment() { # folder
    # A set-up that was cut short, or a Python that was removed since, may leave programs that do not run.
    if ! { "$1/bin/python" -c "" && "$1/bin/uv" --version; } >/dev/null 2>&1; then
        "$(find_python)" -m venv --clear "$1"
        "$1/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$uv_version" 2>/dev/null ||
            fail "pip could not install uv $uv_version into $1; is the package index reachable?"
    fi
    rm -f "$1/ready"
}

install() { # folder, arguments of uv pip install
    local folder=$1
    shift
    VIRTUAL_ENV=$PWD/$folder "$folder/bin/uv" pip install --quiet --compile-bytecode --python "$folder/bin/python" "$@"
}

install_torch_cpu() { # folder
    # The CPU build is found on some machines' own index or disk; elsewhere on PyTorch's. Asking both at once would
    # let an unreachable one stall every other package.
    local torch="torch==2.13.0+cpu"
    install "$1" --no-deps "$torch" 2>/dev/null ||
        install "$1" --no-deps --index-url https://download.pytorch.org/whl/cpu "$torch" ||
        fail "the CPU build of torch 2.13.0 was found neither on the package index nor on PyTorch's"
}

case $part in
system)
    need_packages g++:g++ bubblewrap:bwrap git:git
    # Only the tests need a Slurm of this machine's own; they are skipped without it.
    [ -z "${WARMSTART_TEST_SLURM:-}" ] || PATH=$PATH:/usr/sbin need_packages slurm-wlm:slurmctld munge:munged
    # The tests of boxed JavaScript need a runtime; they are skipped without it as well.
    [ -z "${WARMSTART_TEST_LANGUAGES:-}" ] || need_packages nodejs:node
    ;;
pipeline)
    echo "set-up: .venv (pipeline and training, $device): about 0.8 GB to download, 2.2 GB on disk (CUDA: 4 and 8 GB)"
    make_environment .venv
    # DeepSpeed comes as source only and needs torch and setuptools at hand to build (under a minute).
    if [ "$device" = cuda ]; then
        install .venv -r requirements/torch-cuda.txt
    else
        install_torch_cpu .venv
    fi
    install .venv --no-deps -r <(grep -E '^(setuptools|wheel|packaging|ninja)==' requirements/pipeline.txt)
    grep -v '^torch==' requirements/pipeline.txt >.venv/pipeline.txt
    install .venv --no-deps --no-build-isolation-package deepspeed -r .venv/pipeline.txt -r requirements/dev.txt
    install .venv --no-deps -r requirements/model.txt
    install .venv --no-deps --no-build-isolation --editable .
    touch .venv/ready
    ;;
serving)
    echo "set-up: .venv-vllm (serving, $device): about 1 GB to download, 2.7 GB on disk (CUDA: 5 and 11 GB)"
    make_environment .venv-vllm
    if [ "$device" = cuda ]; then
        install .venv-vllm --no-deps -r requirements/serving-cuda.txt
    else
        install_torch_cpu .venv-vllm
        # The lock leaves out torchvision, torchaudio and torchcodec: the builds on PyPI are CUDA builds that break
        # beside a CPU torch, and vLLM's text path runs without them.
        grep -v '^torch==' requirements/serving.txt >.venv-vllm/serving.txt
        install .venv-vllm --no-deps -r .venv-vllm/serving.txt
    fi
    touch .venv-vllm/ready
    ;;
*)
    fail "there is no part '$part'; use system, pipeline or serving"
    ;;
esac
