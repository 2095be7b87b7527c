"""What runs inside the box: standard library only, handed to the interpreter as text by `pipeline.verify.code.run`."""
