"""A failover does to two real servers what it says, and bit only if the history shows it."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from chaos.cluster.postgres import postgres
from chaos.cluster.standby import standby
from chaos.faults import SERVER
from chaos.faults.failover import Failover
from chaos.faults.fault import Injection
from chaos.history.timelines import Timelines
from chaos.systems import Order, system
from chaos.workload import Job
from tests.chaos.cluster.following import catch_up
from tests.chaos.faults.arena import arena, struck
from tests.chaos.invariants.build import Story, us

FAILOVER = Failover(kind="failover", lasts=1)
INJECTION = Injection(SERVER, us(7), us(7), us(10), seen=0)
ORDER = Order(Job(1, "quick", 0.0, 0), 0, 3)


@pytest.mark.slow
@pytest.mark.chaos_long
def test_a_failover_loses_what_was_committed_under_it_and_leaves_one_server_that_writes() -> None:
    under_test = system("leaseproof")
    with postgres(settings={"synchronous_commit": "on"}) as primary:
        under_test.install(primary.dsn())
        with standby(primary) as second:
            where = arena(primary)
            where.log = Timelines(primary.dsn(), under_test.watched())
            where.log.open()
            assert FAILOVER.inject(where) is None  # there is no standby
            where.standby = second
            where.busy.append(SERVER)
            assert FAILOVER.inject(where) is None
            where.busy.clear()
            where.leases, leases = dict, where.leases
            assert FAILOVER.inject(where) is None
            where.leases = leases
            under_test.enqueue(second.pair_dsn(), [ORDER])
            catch_up(second)
            # The standby knows of no lease: it follows on.
            assert FAILOVER.inject(where) is None
            with psycopg.connect(second.pair_dsn()) as connection:
                connection.execute(
                    "update scheduler.tasks set status = 'running', attempts = 1, lease_token = 1,"
                    " lease_owner = 'w1.1/a', claimed_at = scheduler.now(),"
                    " lease_expires_at = scheduler.now() + interval '1 hour'"
                )
            catch_up(second)
            strike = struck(FAILOVER, where)
            under_test.enqueue(second.pair_dsn(), [ORDER, ORDER])
            strike.heal()
            assert where.server is second
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(primary.dsn())
            assert FAILOVER.inject(where) is None
            under_test.enqueue(second.pair_dsn(), [ORDER])
            where.log.drain()
            assert [len(one.lost) for one in where.log.failovers] == [1]
            assert [len(one.changes) for one in where.log.failovers[0].lost] == [2]
            assert len(where.log.commits) == 3
            where.log.close()


def failed_over(lost: int, *, synchronous: bool = False) -> Story:
    """Task 1 was claimed before, and task 2 is claimed and completed at the promoted server."""
    story = Story().enqueue(1, 2, max_attempts=9).claim(1, at=5).enqueue(3, at=6)
    story.fail_over(lost, at=10, synchronous=synchronous)
    return story.claim(2, at=11).complete(2, at=12)


def test_a_failover_bit_if_something_was_lost_under_leases_and_work_went_on() -> None:
    told = FAILOVER.bite(INJECTION, failed_over(1).history())
    assert told is not None
    assert "1 leases were held across it; 1 commits were lost, with 1 enqueues" in told
    assert told.endswith("then 1 attempts ended")


def test_a_failover_to_a_synchronous_standby_bit_without_a_loss() -> None:
    assert FAILOVER.bite(INJECTION, failed_over(0, synchronous=True).history()) is not None
    assert FAILOVER.bite(INJECTION, failed_over(0).history()) is None


def test_a_failover_did_not_bite_if_no_lease_outlived_it() -> None:
    assert FAILOVER.bite(INJECTION, failed_over(2).history()) is None


def test_a_failover_did_not_bite_if_nobody_worked_on() -> None:
    story = Story().enqueue(1, 2).claim(1, at=5).enqueue(3, at=6).fail_over(1, at=10)
    assert FAILOVER.bite(INJECTION, story.claim(2, at=11).history()) is None
    # One attempt is from before: its end shows no claim of the promoted server.
    assert FAILOVER.bite(INJECTION, story.complete(1, at=12).history()) is None


def test_a_failover_that_did_not_happen_did_not_bite() -> None:
    assert FAILOVER.bite(INJECTION, replace(failed_over(1).history(), failovers=())) is None
