"""Curate traces: near-duplicates, leaks of benchmarks, mixes."""
