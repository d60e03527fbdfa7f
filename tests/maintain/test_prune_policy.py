"""The prune policy as a pure function: who goes, who stays, in which order."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compcache import PrunePolicy
from compcache.formats.makers import Maker
from compcache.maintain.policy import Entry, Plan, plan_prune

NOW = 1_000_000.0
DAY = 86400.0


def entry(
    name: str,
    *imports: str,
    functions: str | None = None,
    used: float = 0.0,
    created: float = NOW - 10 * DAY,
    size: int = 100,
    target: str = "host",
    generation: str = "now",
    pinned: bool = False,
) -> Entry:
    """A module called `name` that exports the functions of that name (or `functions`, separated by blanks)."""
    exported = tuple((functions if functions is not None else name).split())
    module_id = name.encode().ljust(16, b".")
    return Entry(module_id, size, created, used, exported, imports, target, generation, pinned)


def names(plan: Plan) -> list[str]:
    return [removal.entry.module_id.decode().rstrip(".") for removal in plan.removed]


def removed(entries: list[Entry], **policy: object) -> list[str]:
    return names(plan_prune(entries, PrunePolicy(**policy), NOW))  # type: ignore[arg-type]


def test_a_policy_without_arguments_removes_nothing() -> None:
    assert removed([entry("a", created=0.0), entry("b", created=0.0)]) == []


def test_the_least_recently_used_goes_first_and_no_more_than_must() -> None:
    entries = [entry("a", used=NOW - 3), entry("b", used=NOW - 5), entry("c", used=NOW - 1)]
    assert removed(entries, max_bytes=200) == ["b"]
    assert removed(entries, max_bytes=199) == ["b", "a"]
    assert removed(entries, max_modules=0) == ["b", "a", "c"]


def test_a_pack_counts_for_the_size_alone() -> None:
    entries = [entry("a"), entry("b")._replace(functions=(), is_pack=True)]
    assert removed(entries, max_modules=1) == []
    assert len(removed(entries, max_bytes=100)) == 1


def test_what_was_never_used_counts_from_its_creation() -> None:
    entries = [entry("fresh", created=NOW - 1), entry("stale", created=NOW - 9, used=NOW - 4)]
    assert removed(entries, max_modules=1) == ["stale"]


def test_using_a_function_uses_what_it_depends_on() -> None:
    entries = [entry("root", "leaf", used=NOW - 1), entry("leaf"), entry("other", used=NOW - 5)]
    assert removed(entries, max_modules=2) == ["other"]
    assert removed(entries, unused_for=3) == ["other"]


def test_dependents_go_before_what_they_depend_on() -> None:
    entries = [entry("c"), entry("b", "c"), entry("a", "b", used=NOW - 1)]
    assert removed(entries, max_modules=0) == ["a", "b", "c"]
    assert removed(entries, max_modules=1) == ["a", "b"]


def test_a_cycle_goes_as_a_whole() -> None:
    entries = [entry("a", "b"), entry("b", "a"), entry("new", used=NOW)]
    assert sorted(removed(entries, max_modules=2)) == ["a", "b"]


def test_another_realization_releases_a_module_that_is_needed() -> None:
    entries = [
        entry("root", "leaf", pinned=True),
        entry("copy1", functions="leaf", created=NOW - 5),
        entry("copy2", functions="leaf", created=NOW - 2),
    ]
    assert removed(entries, max_modules=0) == ["copy1"]


def test_what_a_copy_that_goes_was_used_for_is_a_use_of_the_copy_that_stays() -> None:
    entries = [
        entry("copy1", functions="f", used=NOW - 2, created=NOW - 100 * DAY),
        entry("copy2", functions="f", created=NOW - 9),
        entry("root", "f", used=NOW - 1),
        entry("other", used=NOW - 5),
    ]
    assert removed(entries, older_than=50 * DAY, max_modules=2) == ["copy1", "other"]


def test_of_what_was_used_at_once_the_older_goes_first() -> None:
    for order in ("abc", "cab", "bca"):
        entries = [entry(name, used=NOW - 1, created=NOW - "-bac".index(name) * DAY) for name in order]
        assert removed(entries, max_modules=0) == ["c", "a", "b"]


def test_an_old_module_that_a_younger_one_needs_stays_and_is_named() -> None:
    plan = plan_prune(
        [entry("root", "leaf", created=NOW - 1), entry("leaf", created=NOW - 9 * DAY), entry("old", created=NOW - 9 * DAY)],
        PrunePolicy(older_than=5 * DAY),
        NOW,
    )  # fmt: skip
    assert names(plan) == ["old"]
    assert [needed.functions for needed in plan.needed] == [("leaf",)]


def test_what_is_pinned_stays_with_what_it_depends_on() -> None:
    entries = [
        entry("pin", "leaf", pinned=True),
        entry("leaf", "deep"),
        entry("deep"),
        entry("other", used=NOW),
    ]
    assert removed(entries, max_bytes=0, unused_for=0, older_than=0) == ["other"]


def test_keep_patterns_protect_like_pins() -> None:
    entries = [entry("lib.dot", "lib.mul"), entry("lib.mul"), entry("tmp.x")]
    assert removed(entries, max_bytes=0, keep="lib.d*") == ["tmp.x"]


def test_match_alone_removes_only_modules_all_of_whose_functions_match() -> None:
    entries = [
        entry("a", functions="tmp.a"),
        entry("b", functions="tmp.b lib.b"),
        entry("c", functions="lib.c"),
    ]
    assert removed(entries, match="tmp.*") == ["a"]
    assert sorted(removed(entries, match=["tmp.*", "lib.b"])) == ["a", "b"]


def test_match_restricts_the_other_criteria() -> None:
    entries = [entry("tmp.a"), entry("lib.a"), entry("tmp.b", created=NOW)]
    assert removed(entries, match="tmp.*", older_than=DAY) == ["tmp.a"]
    assert removed(entries, match="tmp.*", max_modules=0) == ["tmp.a", "tmp.b"]


def test_a_matching_module_that_another_one_needs_stays() -> None:
    assert removed([entry("tmp.leaf"), entry("root", "tmp.leaf")], match="tmp.*") == []


def test_duplicates_keep_the_most_recently_used_copy_of_each_target() -> None:
    entries = [
        entry("one", functions="f", used=NOW - 5),
        entry("two", functions="f", used=NOW - 1),
        entry("avx", functions="f", target="other"),
    ]
    assert removed(entries, duplicates=True) == ["one"]


def test_a_module_that_alone_holds_something_is_no_duplicate() -> None:
    entries = [entry("one", functions="f", used=NOW - 1), entry("more", functions="f g")]
    assert removed(entries, duplicates=True) == ["one"]
    assert removed([*entries, entry("g", used=NOW)], duplicates=True) == ["more"]


def test_stale_code_is_of_a_generation_nothing_of_which_was_used() -> None:
    entries = [
        entry("old1", generation="llvm18"),
        entry("old2", generation="llvm18"),
        entry("used", generation="llvm20", used=NOW - 1),
        entry("same", generation="llvm20"),
    ]
    assert sorted(removed(entries, stale=5 * DAY)) == ["old1", "old2"]
    assert removed(entries, stale=20 * DAY) == []


def test_an_import_that_nothing_provided_before_is_no_reason() -> None:
    assert removed([entry("a", "missing"), entry("b", used=NOW)], max_modules=1) == ["a"]
    assert removed([entry("a", "missing", used=NOW), entry("b")], max_modules=1) == ["b"]


def test_a_module_that_cannot_be_read_is_no_duplicate_and_matches_nothing() -> None:
    unreadable = entry("x", functions="")
    assert removed([unreadable], duplicates=True, match="*") == []
    assert removed([unreadable], max_modules=0) == ["x"]


def test_times_in_the_future_count_as_now() -> None:
    assert removed([entry("future", created=NOW + DAY), entry("now", used=NOW)], unused_for=1) == []


def test_durations_may_be_timedeltas_and_nothing_may_be_negative() -> None:
    assert PrunePolicy(unused_for=timedelta(days=1)).unused_for == DAY
    with pytest.raises(ValueError, match="max_bytes must be 0 or more, not -1"):
        PrunePolicy(max_bytes=-1)
    with pytest.raises(ValueError, match="older_than must be 0 or more"):
        PrunePolicy(older_than=timedelta(days=-1))
    with pytest.raises(ValueError, match="unused_for must be 0 or more, not nan"):
        PrunePolicy(unused_for=float("nan"))


@pytest.mark.slow
def test_a_chain_of_twenty_thousand_modules_is_no_problem() -> None:
    chain = [entry(f"f{n}", f"f{n + 1}") for n in range(20_000)]
    chain[0] = chain[0]._replace(used=NOW)
    gone = removed(chain, max_modules=1)
    assert gone[:2] == ["f0", "f1"]
    assert len(gone) == 19_999


MODULES = st.lists(
    st.tuples(
        st.sets(st.sampled_from("abcdef"), min_size=1, max_size=3),
        st.sets(st.sampled_from("abcdef"), max_size=3),
        st.integers(0, 5),
        st.booleans(),
        st.sampled_from("xy"),
    ),
    max_size=12,
)
POLICIES = st.builds(
    PrunePolicy,
    max_modules=st.none() | st.integers(0, 8),
    max_bytes=st.none() | st.integers(0, 800),
    unused_for=st.none() | st.integers(0, 5),
    older_than=st.none() | st.integers(0, 5),
    duplicates=st.booleans(),
    stale=st.none() | st.integers(0, 5),
    match=st.just(()) | st.just(("[abc]",)),
    keep=st.just(()) | st.just(("f",)),
)


def build(modules: list[tuple[set[str], set[str], int, bool, str]]) -> list[Entry]:
    return [
        Entry(
            bytes([number]) * 16, 100, NOW - 5, NOW - age if age else 0.0, tuple(sorted(exports)),
            tuple(sorted(imports - exports)), target, target, pinned,
        )
        for number, (exports, imports, age, pinned, target) in enumerate(modules)
    ]  # fmt: skip


@pytest.mark.slow
@given(MODULES, POLICIES)
def test_nothing_that_stays_loses_what_it_had(
    modules: list[tuple[set[str], set[str], int, bool, str]], policy: PrunePolicy
) -> None:
    entries = build(modules)
    plan = plan_prune(entries, policy, NOW)
    gone = {removal.entry.module_id for removal in plan.removed}
    assert len(gone) == len(plan.removed)
    kept = [e for e in entries if e.module_id not in gone]
    before = {name for e in entries for name in e.functions}
    after = {name for e in kept for name in e.functions}
    for e in kept:
        assert before.intersection(e.imports) <= after
    assert not any(removal.entry.pinned for removal in plan.removed)


@pytest.mark.slow
@given(MODULES, POLICIES)
def test_limits_are_kept_unless_something_protected_is_in_the_way(
    modules: list[tuple[set[str], set[str], int, bool, str]], policy: PrunePolicy
) -> None:
    entries = [e._replace(pinned=False) for e in build(modules)]
    if policy.match or policy.keep or policy.max_modules is None:
        return
    plan = plan_prune(entries, policy, NOW)
    assert len(entries) - len(plan.removed) <= policy.max_modules


@pytest.mark.slow
@given(MODULES, st.integers(0, 8))
def test_eviction_follows_the_order_of_use(
    modules: list[tuple[set[str], set[str], int, bool, str]], limit: int
) -> None:
    independent = [(exports, set[str](), age, False, target) for exports, _, age, _, target in modules]
    entries = build(independent)
    gone = {r.entry.module_id for r in plan_prune(entries, PrunePolicy(max_modules=limit), NOW).removed}
    kept_times = [max(e.used, e.created) for e in entries if e.module_id not in gone]
    gone_times = [max(e.used, e.created) for e in entries if e.module_id in gone]
    assert len(kept_times) == min(limit, len(entries))
    assert not gone_times or not kept_times or max(gone_times) <= min(kept_times)


def test_what_versions_of_a_maker_made_goes_unless_it_is_needed() -> None:
    def by(name: str, version: str, *imports: str) -> Entry:
        return entry(name, *imports)._replace(makers=(Maker("llvm", "22.1.0"), Maker("numba", version)))

    entries = [by("a", "0.66.0"), by("b", "0.66.1", "c"), by("c", "0.65"), by("d", "0.67")]
    assert removed(entries, made_by="numba<0.66.1") == ["a"]
    assert removed([*entries, by("c", "0.66.1")._replace(module_id=b"c2".ljust(16, b"."))], made_by="numba<0.66.1") == ["c", "a"]
    assert set(removed(entries, made_by=("numba>0.66", "llvm<20"))) == {"b", "d"}
    assert removed(entries, made_by="llvm<22", match="a") == []
    assert removed([entry("x")], made_by="numba") == []


def test_what_is_known_to_be_wrong_goes_whatever_the_policy_says_but_for_pins() -> None:
    wrong = entry("a")._replace(fault="adds one too many")
    assert removed([wrong, entry("b", "a")]) == ["a"]
    assert names(plan_prune([wrong, entry("b")], PrunePolicy(max_modules=0), NOW)) == ["a", "b"]
    assert removed([wrong._replace(pinned=True)]) == []


@pytest.mark.parametrize("value", ["numba<", "", ("numba", "<3")])
def test_texts_that_mean_no_versions_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="versions of a maker"):
        PrunePolicy(made_by=value)  # type: ignore[arg-type]
