"""Each public action of the queue and of the memory, with something to do: what the injector works on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from injector import Connection, Scenario, World
from memory_kit import failing, say
from parkkeeper import migrations
from parkkeeper.memory import MemoryStore, drop_namespace
from parkkeeper.memory.extractors.chunks import Chunks
from parkkeeper.namespace import Namespace
from parkkeeper.queue import QueueStorage
from ringside import age, end_jobs, prune_all, run_out

FLOOR = timedelta(hours=72)
FAR = timedelta(hours=80)
HOUR = timedelta(hours=1)

Act = Callable[[QueueStorage, World], Any]
Form = Callable[[MemoryStore, World], Any]


def on_queue(act: Act) -> Callable[[World, Connection], Any]:
    return lambda world, session: act(QueueStorage(session, world.namespace), world)


def on_memory(act: Form) -> Callable[[World, Connection], Any]:
    return lambda world, session: act(MemoryStore(session, world.namespace), world)


# What the queue finds to do.


def counts(world: World) -> Any:
    return world.queue.queue_counts(world.name)


def waiting(world: World) -> None:
    world.kept["ids"] = world.queue.enqueue_many(world.name, "work", [{}] * 3)


def in_use(world: World) -> None:
    world.queue.set_queue(world.name, failed_retention=60)


def running(world: World) -> None:
    waiting(world)
    world.kept["claims"] = world.queue.claim(world.name, 3)


def abandoned(world: World) -> None:
    for attempts in (1, 2):
        world.queue.enqueue_many(world.name, "work", [{}], max_attempts=attempts)
    world.queue.claim(world.name, 2)
    run_out(world.queue)


def failed(world: World) -> None:
    world.kept["ids"] = end_jobs(world.queue, 3, queue=world.name, kind=world.name)


def buried(world: World) -> None:
    world.queue.set_queue(world.name, dead_letter=True, dead_letter_retention=0)
    world.queue.enqueue_many(world.name, "work", [{}] * 3)
    world.queue.fail_many([(claim, "no") for claim in world.queue.claim(world.name, 3)], terminal=True)


def room(world: World) -> None:
    """End what former turns have left, so that every slot but the current one can be had."""
    run_out(world.queue)
    world.queue.rescue()
    for turn in range(world.kept.get("ended", 1), world.turn):
        while claims := world.queue.claim(f"turn_{turn}", 100):
            world.queue.complete(claims)
    world.kept["ended"] = max(1, world.turn - 1)
    prune_all(world.queue, carry_to="floor")


def ended(world: World) -> None:
    """Leave ended jobs of every kind in the current slot."""
    room(world)
    end_jobs(world.queue, 2, queue=world.name)
    age(world.queue, end_jobs(world.queue, 2, queue=world.name), FAR)
    end_jobs(world.queue, 2, queue=world.name, state="completed")
    world.kept["generation"] = world.query("SELECT generation FROM {ns}.queue_ring_state")[0][0]


def sealed(world: World) -> None:
    ended(world)
    assert world.queue.rotate().outcome == "rotated"


def in_the_floor(world: World) -> None:
    sealed(world)
    prune_all(world.queue)
    ids = world.query("SELECT job_id FROM {ns}.done_entries WHERE ready_slot < 0")
    age(world.queue, [job_id for [job_id] in ids], FAR)


def pinned(world: World) -> None:
    ended(world)
    waiting(world)
    assert world.queue.rotate().outcome == "rotated"


def claims_sealed(world: World) -> None:
    running(world)
    world.queue.complete(world.kept["claims"][:2])
    world.queue.extend(world.kept["claims"][2:], HOUR)
    for ring in ("claim", "lease"):
        while world.queue.prune_oldest(ring=ring).outcome == "pruned":
            pass
        world.queue.rotate(ring=ring)


def held(world: World) -> None:
    claims_sealed(world)
    world.queue.complete(world.kept["claims"])


def turned(world: World) -> Any:
    now = world.query("SELECT generation FROM {ns}.queue_ring_state")[0][0]
    return now - world.kept["generation"], counts(world)


def left_in_ring(ring: str) -> Callable[[World], Any]:
    table = {"claim": "lease_claim_batches", "lease": "leases"}[ring]
    return lambda world: (
        counts(world),
        world.query(
            f"SELECT count(*) FROM {{ns}}.{table} WHERE {ring}_slot <> "  # noqa: S608
            f"(SELECT current_slot FROM {{ns}}.{ring}_ring_state)"
        ),
    )


def deltas(world: World) -> Any:
    return counts(world), world.query("SELECT count(*) FROM {ns}.queue_terminal_count_deltas")


def slots(world: World) -> None:
    world.kept["slots"] = world.query("SELECT slot_count FROM {ns}.queue_ring_state")[0][0]


def settings(world: World) -> Any:
    return world.query(
        "SELECT failed_retention_seconds, paused_at IS NULL FROM {ns}.queue_settings WHERE queue = %s",
        world.name,
    ), world.query("SELECT name, value FROM {ns}.settings WHERE name <> 'digest_key' ORDER BY name")


def away(world: World) -> Any:
    held = "SELECT count(*) FROM {ns}.deferred_jobs JOIN {ns}.queue_lanes USING (lane_id) WHERE queue = %s"
    return counts(world), world.query(held, world.name)


def enqueued(world: World) -> Any:
    found = "SELECT coalesce(sum(jobs), 0) FROM {ns}.queue_ledger JOIN {ns}.queue_lanes USING (lane_id)"
    return world.query(f"{found} WHERE queue = %s", world.name)


QUEUE = {
    "enqueue": Scenario(
        on_queue(lambda q, w: q.enqueue(w.name, "work", {"n": 1}, unique_key=w.name)), outcome=enqueued
    ),
    "enqueue_many": Scenario(
        on_queue(lambda q, w: q.enqueue_many(w.name, "work", [{}] * 3)), outcome=enqueued
    ),
    "claim": Scenario(on_queue(lambda q, w: q.claim(w.name, 2)), waiting, counts),
    "complete": Scenario(on_queue(lambda q, w: q.complete(w.kept["claims"])), running, counts),
    "fail": Scenario(on_queue(lambda q, w: q.fail(w.kept["claims"][0], "no")), running, counts),
    "fail_many": Scenario(
        on_queue(lambda q, w: q.fail_many([(claim, "no") for claim in w.kept["claims"]], terminal=True)),
        running,
        counts,
    ),
    "snooze": Scenario(
        on_queue(lambda q, w: q.snooze(w.kept["claims"], w.kept["claims"][0].lease_until)), running, counts
    ),
    "extend": Scenario(on_queue(lambda q, w: q.extend(w.kept["claims"], HOUR)), running, counts),
    "cancel": Scenario(on_queue(lambda q, w: q.cancel(w.kept["ids"][0])), running, counts),
    "rescue": Scenario(on_queue(lambda q, w: q.rescue()), abandoned, counts),
    "rotate": Scenario(on_queue(lambda q, w: q.rotate()), ended, turned),
    "rotate, claim ring": Scenario(
        on_queue(lambda q, w: q.rotate(ring="claim")), running, lambda w: left_in_ring("claim")(w)[0]
    ),
    "evacuate": Scenario(on_queue(lambda q, w: q.evacuate()), pinned, away),
    "prune_oldest": Scenario(on_queue(lambda q, w: q.prune_oldest(FLOOR)), sealed, counts),
    "prune_oldest, carried to the live slot": Scenario(
        on_queue(lambda q, w: q.prune_oldest(FLOOR, carry_to="live")), sealed, counts
    ),
    "prune_oldest, floor segment": Scenario(
        on_queue(lambda q, w: q.prune_oldest(FLOOR)), in_the_floor, counts
    ),
    "prune_oldest, claim ring": Scenario(
        on_queue(lambda q, w: q.prune_oldest(ring="claim")), held, left_in_ring("claim")
    ),
    "prune_oldest, lease ring": Scenario(
        on_queue(lambda q, w: q.prune_oldest(ring="lease")), claims_sealed, left_in_ring("lease")
    ),
    "plan_prune": Scenario(on_queue(lambda q, w: q.plan_prune()), sealed),
    "grow": Scenario(
        on_queue(lambda q, w: q.grow(w.kept["slots"] + 1)),
        slots,
        lambda w: w.query("SELECT slot_count - %s FROM {ns}.queue_ring_state", w.kept["slots"]),
    ),
    "roll_up": Scenario(on_queue(lambda q, w: q.roll_up()), failed, deltas),
    "rebuild_terminal_counters": Scenario(
        on_queue(lambda q, w: q.rebuild_terminal_counters()), failed, counts
    ),
    "set_queue": Scenario(on_queue(lambda q, w: q.set_queue(w.name, failed_retention=60)), outcome=settings),
    "set_namespace": Scenario(on_queue(lambda q, w: q.set_namespace(carry_to="floor")), outcome=settings),
    "pause": Scenario(on_queue(lambda q, w: q.pause(w.name)), in_use, settings),
    "resume": Scenario(
        on_queue(lambda q, w: q.resume(w.name)), lambda w: (in_use(w), w.queue.pause(w.name)), settings
    ),
    "retry_failed_by_queue": Scenario(on_queue(lambda q, w: q.retry_failed_by_queue(w.name)), failed, counts),
    "retry_failed_by_kind": Scenario(on_queue(lambda q, w: q.retry_failed_by_kind(w.name)), failed, counts),
    "retry_failed_by_window": Scenario(
        on_queue(lambda q, w: q.retry_failed_by_window(w.query("SELECT now() - interval '1 h'")[0][0], None)),
        failed,
        counts,
    ),
    "retry_failed": Scenario(on_queue(lambda q, w: q.retry_failed(w.kept["ids"])), failed, counts),
    "retry_dead_letters": Scenario(on_queue(lambda q, w: q.retry_dead_letters(w.name)), buried, counts),
    "purge_dead_letters": Scenario(on_queue(lambda q, w: q.purge_dead_letters(w.name)), buried, counts),
    "queue_counts": Scenario(on_queue(lambda q, w: q.queue_counts(w.name)), waiting),
    "expiring": Scenario(on_queue(lambda q, w: q.expiring(FAR)), failed),
    "ring_status": Scenario(on_queue(lambda q, w: q.ring_status()), pinned),
    "held_ring_status": Scenario(on_queue(lambda q, w: q.held_ring_status("claim"))),
    "longest_waiting": Scenario(on_queue(lambda q, w: q.longest_waiting()), waiting),
    "job": Scenario(on_queue(lambda q, w: q.job(w.kept["ids"][0])), waiting),
    "broken_invariants": Scenario(on_queue(lambda q, w: q.broken_invariants())),
}


# What the memory finds to do.


def there(world: World) -> bool:
    """Whether there is a schema of the turn."""
    [(found,)] = world.query("SELECT to_regnamespace(%s) IS NOT NULL", world.name)
    return bool(found)


def told(world: World) -> None:
    for n in range(3):
        world.memory.append(world.name, say(f"message {n}"), subject=world.name)


def formed(world: World) -> None:
    told(world)
    assert world.memory.form_batch(Chunks(), scope=world.name).formed == 3


def parked(world: World) -> None:
    told(world)
    refuses = failing("refusal", offsets=[0, 1])
    assert world.memory.form_batch(refuses, scope=world.name).parked == 2


def hung(world: World) -> None:
    told(world)
    world.query(
        "UPDATE {ns}.observation SET claim_token = gen_random_uuid(), formation_attempts = 6,"
        " claimed_until = now() - interval '1 s', next_attempt_at = now() - interval '1 s'"
        " WHERE scope = %s AND log_offset < 2",
        world.name,
    )


def being_rebuilt(world: World) -> None:
    formed(world)
    assert not world.memory.rebuild(world.name, Chunks(), limit=1).done


def asked_for(world: World) -> None:
    formed(world)
    world.kept["request"] = world.memory.request_erasure(subject=world.name, reason="test").request_id


def reach(world: World) -> Any:
    """Return how far the scope is formed, and what is known of it."""
    seen = world.memory.freshness(world.name)
    known = world.query("SELECT count(*), count(DISTINCT text) FROM {ns}.memory WHERE scope = %s", world.name)
    return seen.stored, seen.formed, seen.formed_strict, seen.parked, seen.backlog, seen.erased, known


def time_passes(world: World) -> None:
    """Let claims, retries and leases run out."""
    world.query(
        "UPDATE {ns}.observation SET next_attempt_at = now() - interval '1 s',"
        " claimed_until = CASE WHEN claim_token IS NOT NULL THEN now() - interval '1 s' END"
        " WHERE formed_at IS NULL AND parked_at IS NULL"
    )
    world.query("UPDATE {ns}.rebuild SET leased_until = now() - interval '1 s' WHERE token IS NOT NULL")
    world.query("UPDATE {ns}.formation_circuit SET probing_until = now() WHERE prober IS NOT NULL")


def rebuild_all(store: MemoryStore, world: World) -> None:
    while not store.rebuild(world.name, Chunks(), limit=2).done:
        pass


MEMORY = {
    "append": Scenario(
        on_memory(lambda m, w: m.append(w.name, say("hello"), idempotency_key="once")), outcome=reach
    ),
    "append_many": Scenario(
        on_memory(lambda m, w: m.append_many(w.name, [{"messages": say("a")}, {"messages": say("b")}])),
        outcome=reach,
    ),
    "form_batch": Scenario(
        on_memory(lambda m, w: m.form_batch(Chunks(), scope=w.name)), told, reach, time_passes
    ),
    "form_batch, refused": Scenario(
        on_memory(lambda m, w: m.form_batch(failing("refusal", offsets=[1]), scope=w.name)),
        told,
        reach,
        time_passes,
    ),
    "rebuild": Scenario(on_memory(rebuild_all), formed, reach, time_passes),
    "cancel_rebuild": Scenario(on_memory(lambda m, w: m.cancel_rebuild(w.name)), being_rebuilt, reach),
    "rebuild_ranges": Scenario(on_memory(lambda m, w: m.rebuild_ranges(scope=w.name)), formed),
    "rebuilds": Scenario(on_memory(lambda m, w: m.rebuilds(w.name)), formed),
    "unpark": Scenario(on_memory(lambda m, w: m.unpark(scope=w.name)), parked, reach),
    "sweep": Scenario(on_memory(lambda m, w: m.sweep()), hung, reach),
    "erase": Scenario(on_memory(lambda m, w: m.erase(subject=w.name, reason="test")), formed, reach),
    "request_erasure": Scenario(
        on_memory(lambda m, w: m.request_erasure(subject=w.name, reason="test")), formed, reach
    ),
    "erase_requested": Scenario(
        on_memory(lambda m, w: m.erase_requested(w.kept["request"])), asked_for, reach
    ),
    "erasure_request": Scenario(on_memory(lambda m, w: m.erasure_request(w.kept["request"])), asked_for),
    "erasure_requests": Scenario(on_memory(lambda m, w: m.erasure_requests(limit=1)), asked_for),
    "expire": Scenario(
        on_memory(lambda m, w: m.expire(timedelta(days=1), reason="test")),
        lambda w: (
            formed(w),
            w.query(
                "UPDATE {ns}.observation SET ingested_at = now() - interval '2 d' WHERE scope = %s", w.name
            ),
        ),
        reach,
    ),
    "drop": Scenario(on_memory(lambda m, w: m.drop(w.name, reason="test")), formed, reach),
    "pause": Scenario(on_memory(lambda m, w: m.pause(w.name)), told, reach),
    "resume": Scenario(
        on_memory(lambda m, w: m.resume(w.name)), lambda w: (told(w), w.memory.pause(w.name)), reach
    ),
    "set_backlog_cap": Scenario(on_memory(lambda m, w: m.set_backlog_cap(9, scope=w.name)), told, reach),
    "due_scopes": Scenario(on_memory(lambda m, w: m.due_scopes()), told),
    "settings": Scenario(on_memory(lambda m, w: m.settings())),
    "circuits": Scenario(on_memory(lambda m, w: m.circuits())),
    "probe_now": Scenario(on_memory(lambda m, w: m.probe_now())),
    "freshness": Scenario(on_memory(lambda m, w: m.freshness(w.name)), told),
    "turn_status": Scenario(on_memory(lambda m, w: m.turn_status(w.name, 0)), told),
    "parked": Scenario(on_memory(lambda m, w: m.parked(w.name)), told),
    "recall": Scenario(on_memory(lambda m, w: m.recall(w.name, "message")), formed),
    "verify": Scenario(on_memory(lambda m, w: m.verify())),
    "drop_namespace": Scenario(
        lambda w, session: drop_namespace(session, w.name, reason="test") if there(w) else None,
        lambda w: migrations.migrate(w.connection, w.name, "memory"),
        lambda w: there(w),
    ),
    "broken_invariants": Scenario(on_memory(lambda m, w: m.broken_invariants())),
}


# What the migrations find to do.

_VERSIONS = {
    family: [migration.version for migration in migrations.packaged(family)] for family in migrations.FAMILIES
}


def all_but_one(world: World) -> None:
    migrations.migrate(world.connection, world.name, "memory", target=_VERSIONS["memory"][-2])


def one_of_them(world: World) -> None:
    migrations.migrate(world.connection, world.name, "memory", target=_VERSIONS["memory"][0])


def without_ledger(world: World) -> None:
    one_of_them(world)
    world.query(f"DROP TABLE {world.name}.schema_migration")


def ledger(world: World) -> Any:
    return [row.version for row in migrations.status(world.connection, world.name, "memory").applied]


MIGRATIONS = {
    "migrate": Scenario(
        lambda w, session: migrations.migrate(session, w.name, "memory", target=_VERSIONS["memory"][0]),
        outcome=ledger,
    ),
    "migrate, the newest": Scenario(
        lambda w, session: migrations.migrate(session, w.name, "memory"), all_but_one, ledger
    ),
    "plan": Scenario(lambda w, session: migrations.plan(session, w.name, "memory")),
    "status": Scenario(lambda w, session: migrations.status(session, w.namespace, "queue")),
    "require": Scenario(
        lambda w, session: migrations.require(session, w.kept["space"], "queue"),
        lambda w: w.kept.update(space=Namespace(w.namespace)),
    ),
    "baseline": Scenario(
        lambda w, session: migrations.baseline(session, w.name, "memory", target=_VERSIONS["memory"][0]),
        without_ledger,
        ledger,
    ),
    "verify": Scenario(lambda w, session: migrations.verify(session, w.name), one_of_them),
    "find_namespaces": Scenario(
        lambda w, session: migrations.find_namespaces(session, "queue", pattern="test_*")
    ),
}
#: They need no database, or do what another one does in sessions that they open.
NOT_HIT = {"migrate_all", "packaged", "render", "grants"}
