"""Train packed rows with TRL and DeepSpeed: recipe, order of rows, checkpoints, worker and export."""
