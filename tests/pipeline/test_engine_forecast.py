"""Forecasts: exact where every task is alike, linear in the number of tasks, and true nine times in ten."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.engine.forecast import Rule, Tried, choose_pilot, fit_beta, forecast_sum, forecast_target

VALUES = st.lists(st.integers(0, 1000), min_size=1, max_size=40)


@settings(max_examples=50)
@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(0, 100_000))
def test_tasks_that_are_all_alike_give_their_sum_with_no_doubt(value, pilot, others):
    found = forecast_sum([value] * pilot, others, 0)
    assert found.low == pytest.approx(found.mean) == pytest.approx(found.high) == pytest.approx(value * others)


@settings(max_examples=50)
@given(VALUES, st.integers(0, 5_000), st.integers(0, 5))
def test_an_interval_contains_its_mean_and_stays_between_the_ends(values, others, seed):
    found = forecast_sum(values, others, seed, ends=(0, 1000))
    assert found.mean == pytest.approx(others * sum(values) / len(values))
    assert 0 <= found.low <= found.mean <= found.high <= 1000 * others
    assert found == forecast_sum(values, others, seed, ends=(0, 1000))


@settings(max_examples=25)
@given(st.lists(st.integers(0, 1000), min_size=8, max_size=40), st.integers(2, 20))
def test_a_forecast_grows_with_the_number_of_tasks(values, factor):
    one, many = forecast_sum(values, 2_000, 0), forecast_sum(values, 2_000 * factor, 0)
    assert many.mean == pytest.approx(factor * one.mean)
    assert many.low == pytest.approx(factor * one.low, rel=0.2, abs=100 * factor)
    assert many.high == pytest.approx(factor * one.high, rel=0.2, abs=100 * factor)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_pilot_without_exception_still_leaves_doubt(share):
    found = forecast_sum([share] * 32, 1000, 0, ends=(0, 1))
    assert found.mean == 1000 * share
    assert 10 < found.high - found.low < 100


def covered(pilot, tasks, draw_task, of_task, ends):
    """Share of 200 simulated populations whose total lies in the interval that a pilot gives."""
    hits = 0
    for number in range(200):
        rng = random.Random(number)
        values = [of_task(draw_task(rng), rng) for _ in range(tasks)]
        found = forecast_sum(values[:pilot], tasks - pilot, number, ends)
        hits += found.low <= sum(values[pilot:]) <= found.high
    return hits / 200


def passes(rate, rng, samples=4):
    return sum(rng.random() < rate for _ in range(samples))


@pytest.mark.parametrize("tasks", [40, 2000])
@pytest.mark.parametrize(
    ("draw_task", "of_task", "ends"),
    [
        (lambda rng: rng.betavariate(0.5, 0.5), passes, (0, 4)),
        (lambda rng: rng.betavariate(2, 20), passes, (0, 4)),
        (lambda rng: 0.97, passes, (0, 4)),
        (lambda rng: rng.betavariate(0.5, 0.5), lambda rate, rng: float(passes(rate, rng) > 0), (0, 1)),
        (lambda rng: rng.lognormvariate(5, 0.8), lambda mean, rng: mean * rng.uniform(0.5, 1.5), ()),
    ],
    ids=["bimodal", "hard", "easy", "at least one", "tokens"],
)
def test_the_interval_holds_the_truth_in_most_of_200_populations(tasks, draw_task, of_task, ends):
    share = covered(32, tasks, draw_task, of_task, ends)
    assert share >= 0.8


def sequential(rates, rule, rng, tokens=100):
    """What really asking these tasks gives."""
    tried = []
    for rate in rates:
        right = wrong = 0
        while right < rule.passing and right + wrong < rule.tries and (right, wrong) not in rule.hopeless:
            success = rng.random() < rate
            right, wrong = right + success, wrong + (not success)
        tried.append(Tried(right, wrong, tokens))
    return tried


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.9])
def test_attempts_of_tasks_that_are_all_alike_are_those_of_the_geometric_distribution(rate):
    rule = Rule(passing=1, tries=8)
    tried = sequential([rate] * 200, rule, random.Random(1))
    found = forecast_target(tried, rule, 10_000, [0] * 8, 0)
    truth = 10_000 * (1 - (1 - rate) ** 8) / rate
    assert found.attempts.low <= truth * 1.02 and truth * 0.98 <= found.attempts.high
    assert found.attempts.mean == pytest.approx(truth, rel=0.12)
    assert found.asked == found.attempts
    assert found.asked_tokens.mean == pytest.approx(100 * found.attempts.mean)
    assert found.reached == 1 and found.tasks.mean == 10_000


def test_attempts_of_mixed_tasks_are_foreseen_in_most_of_200_populations():
    rule, hits = Rule(passing=2, tries=8), 0
    for number in range(200):
        rng = random.Random(number)
        tried = sequential([rng.betavariate(0.6, 0.6) for _ in range(500)], rule, rng)
        found = forecast_target(tried[:32], rule, 500, [0] * 8, number)
        hits += found.attempts.low <= sum(one.right + one.wrong for one in tried) <= found.attempts.high
    assert hits >= 160


def test_rows_end_the_set_and_scale_with_what_is_wanted():
    tried = sequential([0.5] * 100, Rule(1, 4), random.Random(2))
    some = forecast_target(tried, Rule(1, 4, rows=1_000), 100_000, [0] * 4, 0)
    more = forecast_target(tried, Rule(1, 4, rows=5_000), 100_000, [0] * 4, 0)
    assert some.passing.mean == pytest.approx(1_000) and some.reached == 1
    assert more.attempts.mean == pytest.approx(5 * some.attempts.mean)
    assert some.attempts.mean == pytest.approx(2_000, rel=0.15)
    assert forecast_target(tried, Rule(1, 4, rows=1_000), 500, [0] * 4, 0).reached == 0
    assert forecast_target(tried, Rule(1, 4, tokens=100_000), 5_000, [0] * 4, 0).attempts.mean == pytest.approx(1_000)


def test_what_the_ledger_holds_is_not_asked_again():
    tried = sequential([0.5] * 100, Rule(1, 4), random.Random(2))
    fresh = forecast_target(tried, Rule(1, 4), 1_000, [0, 0, 0, 0], 0)
    later = forecast_target(tried, Rule(1, 4), 1_000, [1_000, 0, 0, 0], 0)
    assert later.asked.mean == pytest.approx(fresh.asked.mean - 1_000)
    assert forecast_target(tried, Rule(1, 4), 1_000, [1_000] * 4, 0).asked.mean == 0


def test_tasks_without_hope_cost_fewer_attempts():
    tried = sequential([0.01] * 50, Rule(1, 8), random.Random(3))
    patient = forecast_target(tried, Rule(1, 8), 1_000, [0] * 8, 0)
    brief = forecast_target(tried, Rule(1, 8, hopeless=frozenset({(0, 3)})), 1_000, [0] * 8, 0)
    assert brief.attempts.mean < 0.5 * patient.attempts.mean


def test_the_beta_of_a_pilot_finds_the_spread_of_its_pass_rates():
    rng = np.random.default_rng(0)
    for a, b in ((0.5, 0.5), (6, 2), (2, 10)):
        tried = [Tried(right, 16 - right, 1) for right in rng.binomial(16, rng.beta(a, b, 400)).tolist()]
        found = fit_beta(tried)
        assert found[0] / sum(found) == pytest.approx(a / (a + b), abs=0.05)
        assert sum(found) == pytest.approx(a + b, rel=0.6)


@settings(max_examples=50)
@given(st.dictionaries(st.text(min_size=1), st.sampled_from("abc"), max_size=60), st.integers(0, 70), st.integers(0, 3))
def test_a_pilot_holds_each_domains_share_whatever_the_order(domains, size, seed):
    chosen = choose_pilot(domains, size, seed)
    assert len(chosen) == min(size, len(domains))
    assert chosen == choose_pilot(dict(reversed(domains.items())), size, seed)
    for domain in "abc":
        of = [task_id for task_id, name in domains.items() if name == domain]
        share = len(chosen) * len(of) / max(1, len(domains))
        assert abs(len(chosen & set(of)) - share) < 1


def test_a_pilot_is_not_the_first_tasks_and_changes_with_the_seed():
    domains = dict.fromkeys(map(str, range(1000)), "math")
    one, other = choose_pilot(domains, 32, 0), choose_pilot(domains, 32, 1)
    assert one != other and one < choose_pilot(domains, 64, 0)
    assert 300 < sum(map(int, one)) / 32 < 700
