#!/usr/bin/env bash
# Compile requirements/*.in to fully pinned .txt files.
set -euo pipefail
cd "$(dirname "$0")/../requirements"
uv=../.venv/bin/uv
compile=("$uv" pip compile --no-header --quiet --no-emit-index-url --python-version 3.11)
linux=(--python-platform x86_64-manylinux_2_28)
cpu=(--config-file uv.toml)
"${compile[@]}" "${cpu[@]}" --universal pipeline.in -o pipeline.txt
"${compile[@]}" "${cpu[@]}" --universal dev.in -o dev.txt
"${compile[@]}" "${cpu[@]}" "${linux[@]}" serving.in -o serving.txt --override serving.override.txt \
    --no-emit-package torchvision --no-emit-package torchaudio --no-emit-package torchcodec
"${compile[@]}" "${linux[@]}" torch-cuda.in -o torch-cuda.txt
"${compile[@]}" "${linux[@]}" serving-cuda.in -o serving-cuda.txt
