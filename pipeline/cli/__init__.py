"""The command line: one shape for every stage, generated from its `Config`."""
