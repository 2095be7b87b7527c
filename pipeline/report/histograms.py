"""Bins of the report's histograms."""

from collections import Counter
from collections.abc import Mapping, Sequence

RATE_BINS = ("0", "to 1/4", "to 1/2", "to 3/4", "below 1", "1")


def rate_histogram(rates: Sequence[float]) -> list[int]:
    """Tasks by pass rate: never and always right have columns of their own."""
    bins = [0] * len(RATE_BINS)
    for rate in rates:
        bins[0 if rate == 0 else 5 if rate == 1 else 1 + (rate > 0.25) + (rate > 0.5) + (rate > 0.75)] += 1
    return bins


def length_histogram(lengths: Mapping[str, Sequence[int]], bins: int = 20) -> tuple[list[str], dict[str, list[int]]]:
    """Samples by output tokens in bins of one round width, series that are empty left out."""
    longest = max((value for values in lengths.values() for value in values), default=1)
    width = max(1, -(-(longest + 1) // bins))
    num_bins = longest // width + 1
    series = {}
    for name, values in lengths.items():
        if values:
            places = Counter(value // width for value in values)
            series[name] = [places[place] for place in range(num_bins)]
    return [str((place + 1) * width - 1) for place in range(num_bins)], series
