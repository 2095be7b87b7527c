"""Start training runs where the machine file says."""
