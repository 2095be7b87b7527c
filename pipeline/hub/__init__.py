"""A table of traces as a Hub dataset: licences, secrets, typed rows, the card, loading back, and the upload."""
