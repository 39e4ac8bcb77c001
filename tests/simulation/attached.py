"""Defects that tests of other folders find: which test finds which, by its node id.

`tests.support.teeth` tries them. A test whose name changes is named here, too.
"""

from dataclasses import dataclass, replace
from typing import final

from tests.scripts import calls
from tests.support.garden import Garden

from .defects import DEFECTS, counted_by_publish, recheck_creates
from .planting import Plant, after, always, before, both, instead, never, without


@final
@dataclass(frozen=True, slots=True)
class Attached:
    """A defect, and the test that must find it.

    Attributes:
        test: Its node id; without parameters, if `rows` chooses among them.
        rows: Words that stand in the parameters, for each row that must find it.
        says: Type or text of a failure that is no assertion of the test: an error, or an answer that a helper refuses.
    """

    plant: Plant
    test: str
    rows: tuple[str, ...] = ("",)
    says: str = ""

    @property
    def path(self) -> str:
        return self.test.partition("::")[0]

    @property
    def breaks_servers(self) -> bool:
        return self.path.startswith("tests/faults/")


_SCRIPTS = "tests/scripts/test_"
_TIMING = "tests/unit/core/test_timing.py::test_"
_BOTH = ("lock server", "semaphore server")
_ONE = ("server",)

_MAXED = "redis.call('PEXPIRE', waiters, math.max(redis.call('PTTL', waiters), tonumber(life_ms)))"
_UNSEEN = never("W10-buried")
_WRITES = "redis.call('SET', 'another', '')"
"""Needs memory."""


def _flagged(garden: Garden) -> None:
    """Have scripts begin with the line by which Redis refuses them whole."""
    load = calls.load  # type: ignore[attr-defined]  # where it is used
    garden.put(calls, "load", lambda name: replace(load(name), source=b"#!lua\n" + load(name).source))


def _of(path: str, test: str, *plants: Plant, rows: tuple[str, ...] = _BOTH, says: str = "") -> list[Attached]:
    return [Attached(plant, f"{_SCRIPTS}{path}.py::test_{test}", rows, says) for plant in plants]


_REACH = {
    "W1 a session that does not listen is handed nothing": _of(
        "reachable", "a_waiter_that_cannot_be_reached_is_not_given_a_lease", instead("W1-listens", "return 1")
    ),
    "W1 a session that listens is handed it": _of(
        "hand_over", "the_lease_lasts_as_long_as_the_waiter_asked_for", instead("W1-listens", "return 0")
    ),
    "W1 a monitor makes nobody reachable": _of("reachable", "a_monitor_makes_no_waiter_reachable", counted_by_publish),
    "W1 an answer to a newcomer counts subscribers": _of(
        "queue",
        "the_answer_counts_the_subscribers_of_this_session",
        before("W1-grant", "subscribers = function() return 1 end"),
    ),
    "W1 an answer to a re-check counts subscribers": _of(
        "recheck",
        "the_reply_to_a_recheck_counts_the_subscribers_of_its_session",
        before("W1-recheck", "subscribers = function() return 1 end"),
    ),
    "W2 a session that is passed over keeps line and tickets": _of(
        "reachable",
        "a_waiter_that_is_passed_over_leaves_the_queue_and_keeps_its_session_and_ticket",
        after("W2-passed-over", "redis.call('DEL', line)"),
    ),
    "W2 a session that is passed over is in no way": _of(
        "reachable", "the_next_of_the_releasing_session_gets_it", instead("W2-passed-over", "return grants")
    ),
    "W2 the next re-check puts it back": _of(
        "recheck",
        "a_session_that_was_passed_over_is_back_in_its_place",
        both(instead("W2-put-back", "redis.call('PEXPIRE', waiters, life_ms)"), never("W2-stand-again")),
    ),
    "W2 a session whose line has vanished is dead": _of(
        "reachable", "a_session_whose_line_ran_out_is_dead", instead("W2-dead", "return grants")
    ),
    "W2 served in the order of asking": _of(
        "hand_over",
        "sessions_take_turns_in_the_order_of_asking",
        after("W2-first", "head = redis.call('ZRANGE', queue, '-1', '-1')[1]"),
        instead("W2-line", "local first = redis.call('ZREVRANGE', line, '0', '1')"),
        without("W2-move-on"),
    ),
    "W2 a forgotten waiter returns to its old place": _of(
        "queue", "a_waiter_that_comes_back_with_an_old_ticket_has_its_old_place", never("W8-old-ticket")
    ),
}

_TERMS = {
    "W4 as long as the waiter asked for": _of(
        "hand_over",
        "the_lease_lasts_as_long_as_the_waiter_asked_for",
        after("W4-terms", "ttl_ms = string.match(ARGV[2], '^%d+') or ttl_ms"),
    ),
    "W4 as many permits as the waiter asked for": _of(
        "permits",
        "a_waiter_gets_as_many_as_it_asked_for",
        after("W4-terms", "permits = string.match(ARGV[2], ' (%d+)$') or permits"),
        rows=_ONE,
    ),
    "W4 the message names the terms": _of(
        "hand_over",
        "a_waiter_of_another_session_is_told_by_one_message",
        instead("W9-notify", "if polls or notify(head, token, text, life_ms) then"),
    ),
    "W5 a waiter learns the last fencing token": _of(
        "queue",
        "the_answer_names_the_last_fencing_token",
        both(before("W5-queued", "last_fence = function() return 0 end"), before("W5-queued-permits", "newest = 0")),
    ),
    "W5 a re-check names an older fencing token than its grants": _of(
        "recheck",
        "the_fencing_token_in_the_reply_is_older_than_the_grants_in_it",
        both(before("W5-recheck", "before = last_fence()"), before("W5-recheck-permits", "before = newest")),
    ),
}

_FREE = {
    "W7 a newcomer hands over": _of(
        "newcomer",
        "a_waiter_of_another_session_goes_first",
        without("W7-grant"),
        rows=("lock True server", "semaphore True server", "lock False server", "semaphore False server"),
    ),
    "W7 try_acquire has what only the dead wait for": _of(
        "newcomer",
        "what_only_the_dead_wait_for_is_granted",
        both(never("W21-past-queue"), instead("W21-past-queue-permits", "verdict = 'later'")),
        rows=("lock False server", "semaphore False server"),
        says="Busy(",
    ),
    "W7 a release hands over": _of("release", "a_release_that_finds_it_free_hands_over", without("W7-release")),
    "W7 a re-check hands over": _of(
        "recheck", "a_recheck_that_finds_the_lock_free_hands_over_to_the_first_waiter", without("W7-recheck")
    ),
    "W7 a higher limit is handed over": _of(
        "limit", "a_higher_limit_is_handed_over_in_the_reply", without("W7-resize"), rows=_ONE
    ),
    "W8 a re-check creates no waiter": _of("recheck", "a_recheck_creates_no_waiter", recheck_creates),
    "W8 an old ticket is no worse than a new one": _of(
        "queue",
        "an_old_ticket_from_before_the_clock_stepped_back_is_no_worse_than_a_new_one",
        instead("W8-old-ticket", "if not newcomer then"),
    ),
    "W8 a new ticket is behind those in the queue": _of(
        "queue", "a_newcomer_stands_behind_waiters_from_before_the_clock_stepped_back", never("W8-queue")
    ),
    "W8 a new ticket is behind those that the queue does not show": _of(
        "queue",
        "a_newcomer_stands_behind_every_waiter_of_other_sessions_after_the_clock_stepped_back",
        instead("W8-highest", "if not last and redis.call('ZCOUNT', waiters, text, 'inf') > 1 then"),
        instead("W8-newest", "local last = tonumber(redis.pcall('GET', highest))"),
    ),
}

_HALF_WAY = {
    "W9 a release ends at the memory limit": _of(
        "memory_limit", "a_release_hands_over_in_its_reply", before("W9-release", _WRITES), _flagged, says="used memory"
    ),
    "W9 a waiter leaves at the memory limit": _of(
        "memory_limit",
        "at_the_memory_limit_a_waiter_can_leave_the_queue",
        both(before("W9-leave", _WRITES), before("W9-release", _WRITES)),
        says="used memory",
    ),
    "W9 a lease is renewed at the memory limit": _of(
        "memory_limit",
        "a_lease_is_renewed",
        both(instead("W9-renew", "redis.call('SET', holder, value, 'PX', ttl_ms)"), without("W9-extend")),
        _flagged,
        says="used memory",
    ),
    "W9 a re-check ends at the memory limit": _of(
        "memory_limit",
        "a_recheck_puts_a_session_that_was_passed_over_back",
        before("W3-recheck", _WRITES),
        _flagged,
        says="used memory",
    ),
    "W9 a user without NUMSUB waits": _of(
        "rights",
        "a_user_with_the_readmes_rights_waits_and_rechecks",
        instead("W9-count", "local reply = redis.call('PUBSUB', count, channel)"),
        rows=("lock server no_NUMSUB", "semaphore server no_NUMSUB"),
        says="user",
    ),
    "W9 a user without PUBLISH stops no script": _of(
        "rights",
        "without_rights_a_release_wakes_the_next_waiter_or_no_waiter_holds",
        instead("W9-publish", "local reply = redis.call(publish, channel, message)"),
        rows=("lock server no_channels", "semaphore server no_channels"),
        says="user",
    ),
    "W9 what could not be told is taken back": _of(
        "rights",
        "without_rights_a_release_wakes_the_next_waiter_or_no_waiter_holds",
        instead("W9-notify", "notify(head, token, text, ttl_ms)\nif true then"),
        rows=("lock server no_channels", "semaphore server no_channels"),
    ),
    "W9 a waiter with its turn is out of the line": _of(
        "hand_over", "a_waiter_that_gets_the_lock_is_not_in_the_queue_any_more", without("W9-taken-out")
    ),
}

_TWICE = {
    "W10 after its undo nothing comes": _of(
        "grant",
        "a_request_overtaken_by_its_own_undo_is_not_granted",
        both(
            _UNSEEN,
            instead("W10-existing", "local existing = redis.call('EXISTS', holder, queue, waiters)"),
            instead(
                "W10-existing-permits",
                "local existing = redis.call('EXISTS', queue, waiters, holders, holders, holders, holders)",
            ),
        ),
        _UNSEEN,
        rows=("lock server True False", "semaphore server True False"),
    ),
    "W10 a lock that its token holds is waited for in no line": _of(
        "beside",
        "a_request_that_comes_while_its_token_holds_the_lock_is_answered_with_that_grant",
        instead("W10-brief", "local place = value and enqueue_behind_own(entry)"),
        rows=_ONE,
    ),
}

_POLLING = {
    "W11 a session that polls is handed its turn": _of(
        "hand_over", "a_polling_session_is_not_told", instead("W11-polls", "local polls = false")
    ),
    "W11 its turn lasts for two of its looks": _of(
        "hand_over",
        "a_polling_session_has_two_of_its_intervals_to_find_its_turn",
        instead("W11-two-looks", "local _, text = grant(token, ttl_ms, permits)"),
    ),
    "W11 its next re-check makes that a full lease": _of(
        "recheck", "a_turn_that_is_found_is_a_whole_lease", without("W11-full")
    ),
}

_WAITING = {
    "W12 a dead head that wants many": _of(
        "permits",
        "a_big_request_of_a_dead_session_keeps_no_other_caller_waiting",
        instead("W2-dead", "return grants"),
        rows=_ONE,
        says="Queued(",
    ),
    "W12 a head that wants more than there are is refused": _of(
        "limit", "a_lower_limit_refuses_in_the_reply_the_waiters_that_want_more", never("W12-never"), rows=_ONE
    ),
    "W12 a head that wants many is not starved": _of(
        "permits",
        "a_small_request_does_not_pass_a_big_one_of_another_session",
        instead("W12-later", "if amount == 0 then"),
        rows=_ONE,
        says="Granted(",
    ),
    "W12 a head is tested for reach only when something is free": _of(
        "limit",
        "a_lower_limit_costs_no_waiter_its_place_in_the_queue",
        instead("W12-later", "if here or polls or subscribers(head) > 0 then"),
        rows=_ONE,
    ),
    "W12 a head that cannot be reached": _of(
        "permits",
        "waiters_behind_a_big_request_that_cannot_be_reached_get_returned_permits",
        always("W12-later"),
        rows=_ONE,
    ),
}

_MANY = {
    "W21 a hand-over that has no time for all says more": _of(
        "parts", "one_script_looks_at_fifty_dead_sessions", instead("W21-looked-at", "while head do"), never("W21-more")
    ),
    "W21 of many renewals none is another's": _of(
        "renew_many",
        "another_s_lease_is_not_extended_and_the_others_are",
        both(
            instead("W21-renewed", "local renewed = type(value) == 'string' and value ~= ''"),
            instead("W21-usual", "if ttl_ms - longest <= 0 then"),
        ),
    ),
    "W21 of many renewals each fails by itself": _of(
        "renew_many",
        "a_key_of_another_type_is_left_as_it_is_and_the_others_are_renewed",
        both(
            instead("W21-renewed", "local renewed = value and (string.match(value, '^(%S+) %d+$') or value) == token"),
            instead("W21-by-itself", "local done, renewed = true, extend_as_usual(terms[2 * at - 1], terms[2 * at])"),
        ),
        says="user_script",
    ),
    "W21 of many renewals none shortens": _of(
        "renew_many",
        "none_is_shortened",
        both(
            instead("P3-renew-many", "if renewed then"),
            instead("P3-extend", "redis.call('ZADD', holders, 'XX', now_ms + tonumber(ttl_ms), token)"),
        ),
    ),
    "W21 nothing is granted past a queue": _of(
        "parts",
        "no_verb_grants_past_a_queue_that_it_has_no_time_for",
        both(
            instead("W21-past-queue", "if not owner and not held_back and not young then"),
            instead("W21-past-queue-permits", "verdict = can_grant(permits)"),
        ),
        rows=("lock server False", "semaphore server False"),
    ),
    "W21 what an older version granted": _of(
        "number", "what_an_older_version_granted_counts", instead("W21-witness", "local counted = witness"), rows=_ONE
    ),
    "W21 what an older version released": _of(
        "number",
        "what_an_older_version_released_can_be_had",
        instead("W21-members", "local again = not counted and there > 0"),
        rows=_ONE,
        says="Queued(",
    ),
    "W21 a lease that ran out gives back its own weight": _of(
        "expiry",
        "permits_of_a_lease_that_ran_out_can_be_had",
        instead("W21-weight", "count(1, -number)"),
        rows=_ONE,
        says="Queued(",
    ),
}

_LIFE = {
    "W3 a line lives by the newest word": _of(
        "queue", "a_line_lives_by_the_newest_word_even_when_that_is_shorter", instead("W3-line", _MAXED)
    ),
    "W3 a re-check sets how long its line lives": _of(
        "recheck",
        "a_recheck_sets_the_life_of_the_line_even_when_that_is_shorter",
        both(instead("W3-line", _MAXED), instead("W3-recheck", _MAXED)),
    ),
    "W6 no longer than a re-check interval": [
        Attached(
            instead("W6-delay", "return max(expected + 0.002 + 0.01 * jitter, 0.002)"),
            f"{_TIMING}a_recheck_comes_within_the_interval_and_never_at_once",
        )
    ],
    "W6 a lease without an end is asked for seldom": [
        Attached(
            instead("W6-endless", "return min(floor, interval)"),
            f"{_TIMING}without_a_predicted_end_rechecks_are_a_tenth_to_half_a_second_apart",
        )
    ],
    "W6 soon only after a predicted end": [
        Attached(
            instead("W6-delay", "return min(0.002 + 0.01 * jitter, interval)"),
            f"{_TIMING}a_recheck_under_fifty_milliseconds_needs_a_reason",
        )
    ],
}

_FAULTS = "tests/faults/test_"
_PRIMITIVES = "tests/primitives/test_"
_OVERTAKEN = "cancelled_acquires.py::test_an_acquire_that_reaches_redis_after_its_undo_is_granted_to_no_caller"
_RESTARTED = "restarts.py::test_a_holder_learns_of_an_empty_restart_at_its_next_renewal_and_fences_go_on_rising"

_ON_SERVERS: dict[str, tuple[str, ...]] = {
    "no-local-expiry": (
        f"{_FAULTS}cut_off.py::test_a_body_cut_off_from_redis_ends_before_another_caller_can_have_the_name",
        "Lock",
    ),
    "validity-from-the-reply": (
        f"{_FAULTS}cut_off.py::"
        "test_a_body_whose_grant_arrived_late_ends_before_another_caller_can_have_the_name[Lock-asked for]",
        "",
    ),
    "renewal-from-the-reply": (
        f"{_FAULTS}stalls.py::test_a_body_ends_before_its_ttl_when_answers_to_its_renewals_are_late",
        "Lock",
    ),
    "no-tombstone": (f"{_FAULTS}{_OVERTAKEN}", ""),
    "fence-by-incr": (f"{_FAULTS}{_RESTARTED}", "Lock"),
    "renewal-recreates": (f"{_FAULTS}{_RESTARTED}", "Lock"),
    "limit-forgotten": (
        f"{_PRIMITIVES}conformance.py::test_no_more_tasks_are_inside_at_once_than_there_are_places",
        "redis semaphore",
    ),
    "versioned-write-without-compare": (f"{_PRIMITIVES}versioned.py::test_of_updates_at_once_none_is_lost", "redis"),
    "versioned-write-without-its-answer": (
        f"{_FAULTS}versioned_lost_reply.py::test_a_write_whose_answer_is_lost_is_no_conflict",
        "reset",
        "VersionConflictError",
    ),
    "guard-without-compare": (
        f"{_PRIMITIVES}guard.py::test_a_former_holder_writes_nothing_though_it_believes_in_its_lease",
        "lock redis",
    ),
    "number-not-made-anew": (f"{_SCRIPTS}number.py::test_what_an_older_version_granted_counts", "server"),
    "holder-without-field-counts-as-one": (
        f"{_SCRIPTS}number.py::test_a_holder_of_which_nothing_is_known_counts_as_the_largest_weight",
        "server",
    ),
    "handed-over-in-part-and-no-more": (
        f"{_PRIMITIVES}many_at_once.py::test_all_readers_come_in_when_a_writer_leaves",
        "redis",
        "TimeoutError",
    ),
    "granted-past-a-queue-that-is-left": (
        f"{_SCRIPTS}parts.py::test_no_verb_grants_past_a_queue_that_it_has_no_time_for",
        "lock server False",
    ),
    "fencing-token-accepted-twice": (
        f"{_SCRIPTS}redlock.py::test_the_same_token_is_refused_to_another_caller",
        "server",
    ),
}
"""C5: those of `DEFECTS` that a real server must show too."""

ATTACHED = {
    name if at == 0 else f"{name} {at}": attached
    for group in (_REACH, _TERMS, _FREE, _HALF_WAY, _TWICE, _POLLING, _WAITING, _MANY, _LIFE)
    for name, several in group.items()
    for at, attached in enumerate(several)
} | {
    name: Attached(DEFECTS[name].plant, test, (row,), "".join(says)) for name, (test, row, *says) in _ON_SERVERS.items()
}
