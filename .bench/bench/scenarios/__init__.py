"""The scenarios, by name, in the order in which they are run."""

from bench.scenario import Scenario
from bench.scenarios import (
    commands,
    crashes,
    crowd,
    faults,
    fresh_names,
    large,
    latency,
    memory,
    one_lock,
    one_task,
    own_locks,
    quorum,
    readers,
    semaphore,
    slowest,
    starts,
    watchdog,
)

SCENARIOS: dict[str, Scenario] = {
    module.SCENARIO.name: module.SCENARIO
    for module in (
        one_task,
        own_locks,
        fresh_names,
        latency,
        one_lock,
        semaphore,
        readers,
        starts,
        quorum,
        watchdog,
        memory,
        crowd,
        large,
        crashes,
        faults,
        commands,
        slowest,
    )
}
