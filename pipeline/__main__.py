"""`python -m pipeline STAGE ...` is the `warmstart` command."""

from pipeline.cli.main import main

raise SystemExit(main())
