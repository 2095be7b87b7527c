"""One module per DVC stage, each with `Config`, `run` and the pure function doing the work."""
