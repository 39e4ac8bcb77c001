"""Defects that tests of other folders find: which test finds which, by its node id.

`tests.support.teeth` tries them. A test whose name changes is named here, too.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, final

from aiolocks._core import answers as _answers
from tests.scripts import calls
from tests.support.garden import Garden

from .defects import DEFECTS
from .planting import Plant, after, always, before, both, instead, never, without


@final
@dataclass(frozen=True, slots=True)
class Attached:
    """A defect, and the test that must find it, by its node id without parameters, for some of its rows."""

    plant: Plant
    test: str
    rows: tuple[str, ...] = ("",)
    """Words that stand in the parameters, for each row."""
    says: str = ""
    """Type or text of a failure that is no assertion of the test: an error, or an answer that a helper refuses."""

    @property
    def path(self) -> str:
        return self.test.partition("::")[0]

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def breaks_servers(self) -> bool:
        return self.path.startswith("tests/faults/")


_KINDS = ("lock", "semaphore")
_BOTH = ("lock server", "semaphore server")
_ONE = ("server",)
_OF_ONE_KIND = {"limit", "number", "pause", "permits", "expiry", "redlock"}
"""Files of tests of one kind."""

_MAXED = "redis.call('PEXPIRE', waiters, math.max(redis.call('PTTL', waiters), tonumber(life_ms)))"
_UNSEEN = never("W10-buried")
_OF_PERMITS = "local existing = redis.call('EXISTS', queue, waiters, holders, holders, holders, holders)"
_OF_TOKEN = "local renewed = value and (string.match(value, '^(%S+) %d+$') or value) == token"
_AT_ONCE = "local done, renewed = true, extend_as_usual(terms[2 * at - 1], terms[2 * at])"
_CREATES = """if not owner then redis.call('SET', holder, offered .. ' 1 O', 'PX', ttl_ms) end
if owner and (owner ~= offered or mark ~= 'O') then"""
_CREATES_PERMITS = "if not number then number = grant(offered, ttl_ms, 1) note() mark = 'O' end\nif mark ~= 'O' then"
"""A touch makes the lease that it does not find."""

_WRITES = "redis.call('SET', 'another', '')"
"""Needs memory."""


def _flagged(garden: Garden) -> None:
    """Have scripts begin with the line by which Redis refuses them whole."""
    load = calls.load  # type: ignore[attr-defined]  # where it is used
    garden.put(calls, "load", lambda name: replace(load(name), source=b"#!lua\n" + load(name).source))


def _unknown(table: str, word: str) -> Plant:
    """Have no idea of what such an answer means."""

    def plant(garden: Garden) -> None:
        known: dict[str, Any] = getattr(_answers, table)
        garden.put(_answers, table, {other: known[other] for other in known if other != word})

    return plant


_BY_THE_TASK = """undoing = self.context.undos.under_way.get(request.token)
if undoing is None or undoing.waited is None or not undoing.waited.cancelled():
    self.deliver_grant(token, fence, int(amount))"""


def _by(*plants: Plant, rows: tuple[str, ...] = (), says: str = "") -> list[Attached]:
    return [Attached(plant, "", rows, says) for plant in plants]


def _together(*plants: Plant, rows: tuple[str, ...] = (), says: str = "") -> list[Attached]:
    """Both of them at once, which are one defect."""
    return _by(both(*plants), rows=rows, says=says)


def _met(defect: str) -> Plant:
    """Return one that schedules find too: C5 asks for tests on real servers as well."""
    return DEFECTS[defect].plant


_BY_TEST: dict[str, dict[str, list[Attached]]] = {
    "scripts/beside": {
        "W10 a_request_that_comes_while_its_token_holds_the_lock_is_answered_with_that_grant": _together(
            instead("W10-brief", "local place = value and enqueue_behind_own(entry)"),
            instead("W10-brief-permits", "local place = existing == 6 and sure and alike and used >= limit_in_force"),
        ),
    },
    "scripts/expiry": {
        "W21 permits_of_a_lease_that_ran_out_can_be_had":
            _by(instead("W21-weight", "count(1, -number)"), says="Queued("),
    },
    "scripts/grant": {
        "W10 a_request_overtaken_by_its_own_undo_is_not_granted": _by(
            both(
                _UNSEEN, instead("W10-existing", "local existing = redis.call('EXISTS', holder, queue, waiters)"),
                instead("W10-existing-permits", _OF_PERMITS),
            ),
            _UNSEEN, rows=("lock server True False", "semaphore server True False"),
        ),
    },
    "scripts/hand_over": {
        "W1 the_lease_lasts_as_long_as_the_waiter_asked_for": _by(instead("W1-listens", "return 0")),
        "W2 sessions_take_turns_in_the_order_of_asking": _by(
            after("W2-first", "head = redis.call('ZRANGE', queue, '-1', '-1')[1]"),
            instead("W2-line", "local first = redis.call('ZREVRANGE', line, '0', '1')"), without("W2-move-on"),
        ),
        "W4 the_lease_lasts_as_long_as_the_waiter_asked_for":
            _by(after("W4-terms", "ttl_ms = string.match(ARGV[2], '^%d+') or ttl_ms")),
        "W4 a_waiter_of_another_session_is_told_by_one_message":
            _by(instead("W9-notify", "if polls or notify(head, token, text, life_ms) then")),
        "W9 a_waiter_of_the_releasing_session_is_told_in_the_reply": _by(without("W9-taken-out")),
        "W11 a_polling_session_is_not_told_and_has_two_intervals_to_look": _by(
            instead("W11-polls", "local polls = false"),
            instead("W11-two-looks", "local _, text = grant(token, ttl_ms, permits)"),
        ),
    },
    "scripts/levels": {
        "P8 there_is_none_when_a_level_is_not_held_any_more":
            _by(instead("P8-ended", "if not mode then"), rows=("server 1 False",)),
    },
    "scripts/limit": {
        "W7 a_higher_limit_is_handed_over_in_the_reply": _by(without("W7-resize")),
        "W12 a_lower_limit_refuses_in_the_reply_the_waiters_that_want_more": _by(never("W12-never")),
        "W12 a_lower_limit_costs_no_waiter_its_place_in_the_queue":
            _by(instead("W12-later", "if here or polls or subscribers(head) > 0 then")),
    },
    "scripts/memory_limit": {
        "W9 a_release_hands_over_in_its_reply": _by(before("W9-release", _WRITES), _flagged, says="used memory"),
        "W9 at_the_memory_limit_a_waiter_can_leave_the_queue":
            _together(before("W9-leave", _WRITES), before("W9-release", _WRITES), says="used memory"),
        "W9 a_lease_is_renewed": _by(
            both(instead("W9-renew", "redis.call('SET', holder, value, 'PX', ttl_ms)"), without("W9-extend")), _flagged,
            says="used memory",
        ),
        "W9 a_recheck_puts_a_session_that_was_passed_over_back":
            _by(before("W3-recheck", _WRITES), _flagged, says="used memory"),
    },
    "scripts/newcomer": {
        "W7 a_waiter_of_another_session_goes_first": _by(
            without("W7-grant"),
            rows=("lock True server", "semaphore True server", "lock False server", "semaphore False server"),
        ),
        "W7 what_only_the_dead_wait_for_is_granted": _together(
            never("W21-past-queue"), instead("W21-past-queue-permits", "verdict = 'later'"),
            rows=("lock False server", "semaphore False server"), says="Busy(",
        ),
    },
    "scripts/number": {
        "W21 what_an_older_version_granted_counts":
            _by(instead("W21-witness", "local counted = witness"), instead("W21-witness", "local counted = true")),
        "W21 a_holder_of_which_nothing_is_known_counts_as_the_largest_weight": _by(instead("W21-unknown", "return 1")),
        "W21 what_an_older_version_released_can_be_had":
            _by(instead("W21-members", "local again = not counted and there > 0"), says="Queued("),
    },
    "scripts/parts": {
        "W21 one_script_looks_at_fifty_dead_sessions":
            _by(instead("W21-looked-at", "while head do"), never("W21-more")),
        "W21 no_verb_grants_past_a_queue_that_it_has_no_time_for": _together(
            instead("W21-past-queue", "if not owner and not held_back and not young then"),
            instead("W21-past-queue-permits", "verdict = can_grant(permits)"),
            rows=("lock server False", "semaphore server False"),
        ),
    },
    "scripts/pause": {
        "W7 to_resume_hands_over_all_that_is_free": _by(without("W7-resume")),
        "W9 it_works_at_the_memory_limit": _by(without("W25-memory"), says="used memory"),
        "W25 a_later_pause_only_extends_an_earlier_one": _by(
            instead("W25-extends", "local added = redis.call('ZADD', holders, ends, PAUSE)"), rows=("server 180000",),
        ),
        "W25 no_limit_lets_anyone_in": _together(
            instead("W25-counted", "count(limit_in_force, added)"),
            instead("W25-terms", "local terms = limit_in_force .. ' ' .. digits(newest) .. ' C'"),
            rows=("server 1000000000",),
        ),
        "W25 counting_again_counts_a_pause_for_all_there_is": _by(without("W25-weight"), rows=("server 1",)),
        "W25 nothing_is_granted_and_what_is_held_stays_held": _by(without("W25-counted")),
        "W25 the_terms_of_a_pause_are_those_of_a_cooling_lease":
            _by(instead("W25-terms", "local terms = ALL_PERMITS .. ' ' .. newest .. ' C'")),
        "W25 a_pause_is_no_holder": _by(without("W25-statistics")),
        "W25 to_revoke_all_holders_ends_no_pause":
            _by(instead("W25-revoke", "local held = true"), rows=("server True", "server False")),
        "W25 the_first_waiter_learns_when_to_look": _by(without("W25-told"), rows=("server home", "server away")),
        "W25 the_answer_says_when_something_can_be_had":
            _by(without("W25-later"), instead("W25-later", "first = paused")),
        "W25 what_a_pause_put_on_record_goes_with_it":
            [*_by(without("W25-resume"), rows=("server resumed",)), *_by(without("W25-end"), rows=("server over",))],
        "W25 holders_of_which_nothing_is_known_count_as_the_limit_after_a_pause":
            _by(without("W25-unknown"), rows=("server over", "server resumed")),
        "W25 a_pause_whose_terms_were_deleted_is_counted_when_it_is_extended": _by(without("W25-forgotten")),
        "W25 to_resume_after_a_step_back_of_the_clock_lets_no_lease_last_for_the_step":
            _by(instead("W25-resume-clock", "local latest = nil")),
        "W25 after_a_step_back_of_the_clock_it_lasts_no_longer_than_any_lease": _by(without("W25-ttl")),
    },
    "scripts/permits": {
        "W4 a_waiter_gets_as_many_as_it_asked_for":
            _by(after("W4-terms", "permits = string.match(ARGV[2], ' (%d+)$') or permits")),
        "W12 a_big_request_of_a_dead_session_keeps_no_other_caller_waiting":
            _by(instead("W2-dead", "return grants"), says="Queued("),
        "W12 a_small_request_does_not_pass_a_big_one_of_another_session":
            _by(instead("W12-later", "if amount == 0 then"), says="Granted("),
        "W12 waiters_behind_a_big_request_that_cannot_be_reached_get_returned_permits": _by(always("W12-later")),
    },
    "scripts/queue": {
        "W1 the_answer_counts_the_subscribers_of_this_session":
            _by(before("W1-grant", "subscribers = function() return 1 end")),
        "W2 a_waiter_that_comes_back_with_an_old_ticket_has_its_old_place": _by(never("W8-old-ticket")),
        "W3 a_line_lives_by_the_newest_word_even_when_that_is_shorter": _by(instead("W3-line", _MAXED)),
        "W5 the_answer_names_the_last_fencing_token": _together(
            before("W5-queued", "last_fence = function() return 0 end"), before("W5-queued-permits", "newest = 0"),
        ),
        "W8 an_old_ticket_from_before_the_clock_stepped_back_is_no_worse_than_a_new_one":
            _by(instead("W8-old-ticket", "if not newcomer then")),
        "W8 a_newcomer_stands_behind_waiters_from_before_the_clock_stepped_back": _by(never("W8-queue")),
        "W8 a_newcomer_stands_behind_all_other_sessions_after_the_clock_stepped_back": _by(
            instead("W8-highest", "if not last and redis.call('ZCOUNT', waiters, text, 'inf') > 1 then"),
            instead("W8-newest", "local last = tonumber(redis.pcall('GET', highest))"),
        ),
    },
    "scripts/reachable": {
        "W1 a_waiter_that_cannot_be_reached_is_not_given_a_lease": _by(instead("W1-listens", "return 1")),
        "W1 a_monitor_makes_no_waiter_reachable": _by(_met("publish-count-instead-of-numsub")),
        "W2 a_waiter_that_is_passed_over_leaves_the_queue_and_keeps_its_session_and_ticket":
            _by(after("W2-passed-over", "redis.call('DEL', line)")),
        "W2 the_next_of_the_releasing_session_gets_it": _by(instead("W2-passed-over", "return grants")),
        "W2 a_session_whose_line_ran_out_is_dead": _by(instead("W2-dead", "return grants")),
    },
    "scripts/recheck": {
        "W1 the_reply_to_a_recheck_counts_the_subscribers_of_its_session":
            _by(before("W1-recheck", "subscribers = function() return 1 end")),
        "W2 a_session_that_was_passed_over_is_back_in_its_place":
            _together(instead("W2-put-back", "redis.call('PEXPIRE', waiters, life_ms)"), never("W2-stand-again")),
        "W3 a_recheck_sets_the_life_of_the_line_even_when_that_is_shorter":
            _together(instead("W3-line", _MAXED), instead("W3-recheck", _MAXED)),
        "W5 the_fencing_token_in_the_reply_is_older_than_the_grants_in_it":
            _together(before("W5-recheck", "before = last_fence()"), before("W5-recheck-permits", "before = newest")),
        "W7 a_recheck_that_finds_the_lock_free_hands_over_to_the_first_waiter": _by(without("W7-recheck")),
        "W8 a_recheck_creates_no_waiter": _by(_met("recheck-creates")),
        "W11 a_turn_that_is_found_is_a_whole_lease": _by(without("W11-full")),
    },
    "scripts/release": {"W7 a_release_that_finds_it_free_hands_over": _by(without("W7-release"))},
    "scripts/renew_many": {
        "W21 another_s_lease_is_not_extended_and_the_others_are": _together(
            instead("W21-renewed", "local renewed = type(value) == 'string' and value ~= ''"),
            instead("W21-usual", "if ttl_ms - longest <= 0 then"),
        ),
        "W21 a_key_of_another_type_is_left_as_it_is_and_the_others_are_renewed":
            _together(instead("W21-renewed", _OF_TOKEN), instead("W21-by-itself", _AT_ONCE), says="user_script"),
        "W21 none_is_shortened": _together(
            instead("P3-renew-many", "if renewed then"),
            instead("P3-extend", "redis.call('ZADD', holders, 'XX', now_ms + tonumber(ttl_ms), token)"),
        ),
    },
    "scripts/rights": {
        "W9 a_user_with_the_readmes_rights_waits_and_rechecks": _by(
            instead("W9-count", "local reply = redis.call('PUBSUB', count, channel)"),
            rows=("lock server no_NUMSUB", "semaphore server no_NUMSUB"), says="user",
        ),
        "W9 without_rights_a_release_wakes_the_next_waiter_or_no_waiter_holds": _by(
            instead("W9-publish", "local reply = redis.call(publish, channel, message)"),
            rows=("lock server no_channels", "semaphore server no_channels"), says="user",
        ),
        "W9 without_rights_a_grant_is_told_or_no_waiter_holds": _by(
            instead("W9-notify", "notify(head, token, text, ttl_ms)\nif true then"),
            rows=("lock server no_channels", "semaphore server no_channels"),
        ),
    },
    "scripts/touch": {
        "W27 a_touch_extends_the_offer_and_answers_its_fencing_token": _by(instead("W27-fence", "return 1")),
        "W27 a_touch_never_shortens_an_offer": _together(
            instead("W27-extend", "redis.call('PEXPIRE', holder, ttl_ms)"),
            instead("W27-extend-permits", "redis.call('ZADD', holders, now_ms + ttl_ms, offered)"),
        ),
        "W27 a_touch_that_comes_late_creates_nothing":
            _together(instead("W27-offered", _CREATES), instead("W27-offered-permits", _CREATES_PERMITS)),
        "W27 only_an_offer_can_be_touched": _together(
            instead("W27-offered", "if owner ~= offered then"), instead("W27-offered-permits", "if not number then"),
        ),
        "W27 a_touch_after_the_adoption_says_so_and_changes_nothing": _by(without("W27-adopter")),
        "W27 a_revoked_offer_ends_at_once_and_the_next_touch_finds_nothing": _together(
            instead("W27-revoked", "local force, unused = tombstone_ms - 0 > 0, mark == 'C'"),
            instead("W27-revoked-some", "local unused = mark == 'C'"),
        ),
    },
    "primitives/touch": {
        "W27 an_adoption_ends_the_text": _by(instead("W27-secret", 'secret = b"0" * 33'), rows=("lock redis",)),
        "W27 when_one_of_several_names_is_gone_all_are_dropped": _by(never("W27-whole"), rows=("redis",)),
        "W27 when_a_level_of_a_path_is_revoked_all_are_dropped":
            _by(never("W27-whole"), rows=("redis",), says="AcquireTimeoutError"),
    },
    "faults/touch": {
        "W27 a_touch_or_drop_in_the_middle_of_an_adoption_leaves_it_to_the_adopter":
            _by(without("W27-adopter"), rows=("multilock",), says="LeaseLostError"),
        "W27 a_drop_that_was_lost_while_another_process_adopted_says_so": _by(never("W27-adopted"), rows=("lock",)),
        "W27 a_touch_and_a_drop_whose_answers_are_lost_say_what_they_did":
            _by(instead("W27-lost", "return ended is True"), rows=("lock reset",)),
    },
    "primitives/conformance_blocks": {
        "W12 a_task_that_would_wait_for_itself_gets_an_error_or_none":
            _by(instead("W12-itself", "return False"), rows=("lock redis",), says="AcquireTimeoutError"),
    },
    "simulation/rules/rules": {
        "P1 a_lease_counts_from_before_its_grant_though_its_notice_is_late": _by(
            before("P1-recheck", "for each in self._context.tokens.values():\n    each.left_at(call.sent_at)"),
            rows=_KINDS,
        ),
        "W2 after_a_stall_of_the_server_the_order_is_as_before": _by(never("W8-old-ticket"), rows=_KINDS),
        "W5 a_cancellation_after_the_grant_was_set_passes_it_on": _by(
            after(
                "W5-undo",
                "if request.turn.done() and not request.turn.cancelled():\n    return context.forget(request)",
            ),
            rows=_KINDS,
        ),
        "W5 a_waiter_told_by_a_release_is_not_forgotten_when_the_releasing_task_is_cancelled":
            _by(instead("W5-dispatched", _BY_THE_TASK)),
        "W10 an_undo_sent_over_another_connection_leaves_a_tombstone_as_it_overtakes_its_request": _by(
            never("W10-late"), instead("W10-longest", "tombstone_ms = round(1000 * request.terms.ttl)"), rows=_KINDS,
        ),
        "W15 a_waiter_in_a_session_that_turns_keeps_its_place": _by(without("W15-move"), rows=_KINDS),
        "I2 a_waiter_subscribes_at_the_node_that_has_the_slot_now": _by(never("I2-ended"), rows=_KINDS),
        "I4 while_no_server_writes_leases_are_kept_and_requests_repeated": [
            *_by(_unknown("_NOT_NOW", "NOREPLICAS "), rows=("lock replicas", "semaphore replicas")),
            *_by(_unknown("_NO_PRIMARY", "READONLY "), rows=("lock primary", "semaphore primary")),
        ],
    },
    "simulation/rules/twice": {
        "W9 a_tombstone_that_may_not_be_written_keeps_no_caller_waiting":
            _by(instead("W9-tombstone", "redis.call('SET', tombstone, '', 'PX', tombstone_ms)"), says="user"),
        "W10 a_lock_has_one_fencing_token_though_the_last_one_issued_is_forgotten": _by(
            instead("W10-fence", "return { 'granted', last_fence(), 0 }"),
            instead("W10-recheck", "answer = -last_fence()"),
        ),
        "W10 permits_asked_for_twice_have_one_fencing_token":
            _by(instead("W10-fence-permits", "return { 'granted', newest, grants, differed, limit_in_force }")),
        "W10 a_request_for_a_short_answer_that_comes_after_its_undo_comes_to_nothing": _together(
            instead("W10-existing", "local existing = redis.call('EXISTS', holder, queue, waiters, tombstone)"),
            instead("W10-line-permits", "and enqueue_behind_own(entry)"), rows=_KINDS,
        ),
    },
    "unit/core/timing": {
        "W3 a_lease_handed_to_a_dead_session_outlasts_its_sign_of_life":
            _by(instead("W3-interval", "return min(1.0, ttl)")),
        "W6 rechecks_come_in_the_interval_and_not_at_once":
            _by(instead("W6-delay", "return max(expected + 0.002 + 0.01 * jitter, 0.002)")),
        "W6 without_a_predicted_end_rechecks_are_a_tenth_to_half_a_second_apart":
            _by(instead("W6-endless", "return min(floor, interval)")),
        "W6 a_recheck_under_fifty_milliseconds_needs_a_reason":
            _by(instead("W6-delay", "return min(0.002 + 0.01 * jitter, interval)")),
    },
    "unit/engine/acquire": {
        "W5 cancelling_at_any_await_leaves_nothing_behind":
            _by(without("W5-awaited"), rows=("asked_again its_task None",), says="AssertionError: assert not {"),
        "W13 a_lease_that_replicas_must_have_begins_when_they_have_it": _by(never("W13-asked")),
    },
    "unit/engine/renewal_together": {
        "W21 what_was_not_renewed_along_with_the_others_is_asked_for_at_once_and_is_lost_alone":
            _by(without("W21-apart"), always("W21-each"), says="ValueError"),
    },
    "unit/engine/request": {
        "W5 news_that_are_not_newer_than_the_answer_that_it_waits_are_ignored": _by(never("W5-stale")),
        "W5 what_was_answered_is_under_way_no_more_and_the_other_attempts_are":
            _by(instead("W5-tried", "return False")),
        "W10 an_undo_is_worth_trying_for_as_long_as_a_request_may_still_arrive": _by(never("W10-undo-for")),
    },
    "unit/grantors/wakeups": {
        "W11 a_session_that_polls_emits_an_event_with_the_seconds_until_it_subscribes_again":
            _by(always("W11-forbidden")),
        "W1 a_polling_session_is_notified_once_its_subscription_is_found": _by(before("W1-subscribed", "return")),
        "W15 a_polling_session_is_notified_once_its_subscription_is_found":
            _by(without("W15-try-again"), without("W15-counted")),
        "W15 it_tries_after_a_second_and_then_half_as_often":
            _by(instead("W15-pause", "self._pause = pause"), says="AssertionError: [1.0"),
    },
    "unit/grantors/one_server": {
        "W3 a_session_promises_signs_of_life_by_the_shortest_ttl_that_waits":
            _by(instead("W3-life", "return b'%b %d %b' % (name, round(12_000 * interval), channels)")),
        "W5 a_grant_that_no_one_here_wants_is_given_back_at_once_and_a_refusal_is_not":
            _by(never("W5-stray"), says="ValueError"),
        "W8 only_a_newcomer_to_a_lock_that_waits_on_known_terms_asks_for_a_short_answer":
            _by(instead("W8-ticket", "ticket = 0 if request.wait else ~request.ticket")),
        "W10 a_request_that_may_still_come_is_buried_only_if_it_left_over_another_connection":
            _by(instead("W10-late", "if asked.link is not None:")),
        "W13 replicas_are_waited_for_as_long_as_a_quarter_of_the_ttl_or_a_second": _by(never("W13-counted")),
        "W21 what_an_undo_had_no_time_for_is_gone_on_with_by_the_session": _by(without("W21-hand-over")),
    },
    "unit/grantors/replication_waits": {
        "W13 one_wait_serves_all_that_was_written_before_it_each_by_what_it_needs": _by(always("W13-together")),
        "W13 a_wait_is_never_for_ever": _by(instead("W13-slice", "slice_ms = 9_000")),
    },
    "unit/grantors/cluster_wakeups": {
        "I3 leases_are_renewed_whose_slots_have_gone_to_another_node_and_no_others": _by(without("I3-moved")),
    },
    "unit/grantors/wait_queue": {
        "W1 a_session_that_is_not_found_among_subscribers_subscribes_again_and_then_polls": _by(never("W1-subscribe")),
        "W3 a_queue_rechecks_as_often_as_the_shortest_ttl_needs_and_says_so":
            _by(instead("W3-shortest", "self._set_interval(request.terms.recheck)")),
        "W3 a_waiter_that_joins_others_asks_for_a_short_answer_once_the_server_knows_the_session":
            _by(instead("W3-told", "return True")),
        "W6 a_queue_rechecks_once_the_lease_in_the_way_can_have_ended_or_after_its_interval": _by(
            instead("W6-expected", "expected = self.interval() if busy_ms >= 0 else (0.0 if busy_ms == -2 else None)"),
            rows=("500",),
        ),
        "W6 a_lost_connection_is_reason_to_ask_at_once_over_a_new_one": _by(never("W6-link-lost")),
        "W6 a_recheck_that_is_not_answered_for_an_interval_is_asked_over_a_new_connection":
            _by(instead("W6-patience", "return 1e6")),
        "W8 a_place_that_the_server_has_forgotten_is_asked_for_by_the_old_ticket":
            _by(without("W8-anew"), says="ValueError"),
        "W8 two_turns_in_a_row_that_were_not_told_are_reason_for_a_new_subscription":
            _together(never("W8-left"), instead("W8-done", "if request.token not in self._asking_again:")),
        "W11 a_session_that_is_passed_over_twice_in_a_row_although_it_subscribed_polls": _by(never("W11-unheard")),
        "W11 leave_that_was_not_answered_is_taken_again_ahead_of_what_is_sent_next":
            _by(instead("W11-formers", "formers, self._names = set(), {address[0]}")),
        "W15 a_session_that_subscribed_since_it_was_passed_over_does_not_poll":
            _by(instead("W15-passed-over", "passed_over = True")),
    },
    "unit/primitives/semaphore": {
        "W12 a_task_that_waits_for_itself_under_the_limit_in_force_is_told":
            _by(never("W12-permits"), rows=("True",), says="AcquireTimeoutError"),
    },
    "unit/redis/pipeline": {
        "W6 each_reply_starts_the_patience_of_the_calls_behind_it_again":
            _by(instead("W6-heard", "quiet_since = call.sent_at")),
    },
    "unit/redis/cluster": {
        "I4 a_call_that_is_to_go_elsewhere_once_goes_whole_and_behind_asking":
            _by(instead("I4-asking", "self._asking = False"), without("I4-whole")),
        "I4 what_a_node_cannot_do_just_now_is_asked_again_by_the_lock":
            _by(_unknown("_NOT_NOW", "TRYAGAIN "), rows=("refusal0",), says="TryAgainError"),
        "I1 a_call_that_was_given_up_is_not_sent_again":
            _by(instead("I1-abandoned", "if self.count >= _MAX_REDIRECTS or (not moved and not router.may_ask()):")),
    },
    "faults/cut_off": {
        "P1 a_body_cut_off_from_redis_ends_before_another_caller_can_have_the_name":
            _by(_met("no-local-expiry"), rows=("Lock",)),
        "P1 a_body_whose_grant_arrived_late_ends_before_another_caller_can_have_the_name":
            _by(_met("validity-from-the-reply"), rows=("Lock asked_for",)),
    },
    "faults/stalls": {
        "P1 a_body_ends_before_its_ttl_when_answers_to_its_renewals_are_late":
            _by(_met("renewal-from-the-reply"), rows=("Lock",)),
    },
    "faults/cancelled_acquires": {
        "P7 an_acquire_that_reaches_redis_after_its_undo_is_granted_to_no_caller": _by(_met("no-tombstone")),
    },
    "faults/restarts": {
        "P8 a_holder_learns_of_a_restart_without_its_lease_at_its_next_renewal_and_fences_go_on_rising":
            _by(_met("fence-by-incr"), _met("renewal-recreates"), rows=("empty Lock",)),
    },
    "faults/versioned_lost_reply": {
        "C5 a_lost_answer_is_no_conflict":
            _by(never("versioned-again"), rows=("reset",), says="VersionConflictError"),
    },
    "primitives/conformance": {
        "P9 no_more_tasks_are_inside_at_once_than_there_are_places":
            _by(_met("limit-forgotten"), rows=("redis semaphore",)),
    },
    "primitives/versioned": {"C5 of_updates_at_once_none_is_lost": _by(never("versioned-compare"), rows=("redis",))},
    "primitives/guard": {
        "C5 a_former_holder_writes_nothing_though_it_believes_in_its_lease":
            _by(never("guard-compare"), rows=("lock redis",)),
    },
    "primitives/many_at_once": {
        "W21 all_readers_come_in_when_a_writer_leaves":
            _by(without("W21-say-more"), rows=("redis",), says="TimeoutError"),
    },
    "scripts/max_waiting": {
        "W26 a_token_that_is_in_line_is_never_refused": _by(never("W26-in-line"), says="Full("),
        "W26 the_number_that_wait_in_each_session_counts":
            _by(instead("W26-waiters", "local number = redis.call('EXISTS', line)"), says="Queued("),
        "W26 however_many_dead_sessions_do_not_fill_a_queue": _by(without("W26-dead"), rows=_ONE),
        "W26 more_sessions_than_one_script_counts_are_a_full_queue":
            _by(never("W26-sessions"), rows=_ONE, says="Queued("),
        "W26 what_is_free_is_handed_over_before_a_newcomer_is_refused": _by(
            instead("W26-free", "if most and crowd(most) then return { 'full', busy_for(), 0, crowd(most) } end"),
            rows=("lock server",),
        ),
        "W26 a_newcomer_that_does_not_fit_has_the_room_of_a_waiter_that_does":
            _by(instead("W26-first", "return true"), rows=_ONE, says="Full("),
    },
    "primitives/max_waiting": {
        "W26 who_finds_as_many_waiting_is_refused_and_leaves_nothing":
            _by(instead("W26-brief", "ticket = extension.newcomer"), rows=("redis lock",), says="TooLateError"),
        "W26 a_waiter_that_the_server_has_forgotten_is_not_refused":
            _by(instead("W26-newcomer", "if extension.newcomer:"), rows=("redis lock",), says="TooLateError"),
        "W26 a_name_that_was_waited_for_is_given_back_too": _by(without("W26-parts"), rows=("redis",)),
    },
    "unit/engine/newcomer": {
        "W26 a_request_whose_grant_was_withdrawn_is_no_newcomer":
            _by(instead("W26-again", "extensions = self.extensions")),
        "W26 a_request_whose_grant_came_late_is_no_newcomer": _by(without("W26-granted")),
    },
    "scripts/redlock": {
        "P8 the_same_token_is_refused_to_another_caller":
            _by(instead("P8-agreed", "if known and tonumber(known) > tonumber(number) then")),
    },
}  # fmt: skip
"""The tests of each file, and with each the rule of ARCHITECTURE.md that it shows."""


def _attached() -> Iterator[tuple[str, Attached]]:
    for file, tests in _BY_TEST.items():
        folder, _, name = file.rpartition("/")
        every_row = (_ONE if name in _OF_ONE_KIND else _BOTH) if folder == "scripts" else ("",)
        for test, several in tests.items():
            node = f"tests/{folder}/test_{name}.py::test_{test.partition(' ')[2]}"
            for at, each in enumerate(several):
                yield f"{test} {at}", replace(each, test=node, rows=each.rows or every_row)


ATTACHED = dict(_attached())
