"""MinHash signatures of texts, cut into bands: texts that share a band are candidates for being near-duplicates."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.curate.meaning import shingles_of, words_of


@dataclass(frozen=True, slots=True)
class Banding:
    """How signatures are made and cut. More rows a band find fewer candidates, more bands find more."""

    shingle_words: int
    bands: int
    rows: int
    seed: int

    def chance(self, similarity: float) -> float:
        """How likely two texts of this Jaccard similarity become candidates."""
        return float(1 - (1 - similarity**self.rows) ** self.bands)


def band_keys(texts: Sequence[str], banding: Banding) -> list[tuple[bytes, ...]]:
    """One key a band for each text; equal for equal word sequences."""
    from rensa import RMinHash

    shingles = [sorted(shingles_of(words_of(text), banding.shingle_words)) for text in texts]
    if not shingles:
        return []
    digests = RMinHash.digests_from_token_sets(shingles, banding.bands * banding.rows, banding.seed)
    rows = banding.rows
    return [
        tuple(
            band.to_bytes(2, "little") + b"".join(n.to_bytes(4, "little") for n in digest[band * rows :][:rows])
            for band in range(banding.bands)
        )
        for digest in digests
    ]
