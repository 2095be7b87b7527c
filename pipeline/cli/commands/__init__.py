"""Commands beside the stages, one module each, found by name.

A command named `peek` is `pipeline/cli/commands/peek.py`: a docstring (its first line is the help), `add_arguments` and
`run`, which returns the exit code. Heavy libraries are imported inside the functions that use them.
"""
