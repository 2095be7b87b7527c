"""One claim measured a module: `python -m benchmarks.NAME` prints one JSON object of flat figures last."""
