"""How each crash point is reached, and what must have become of the job afterwards.

`REACH` has one recipe for each method of the worker's ports: it brings a worker to the point, sees it die, lets
another one go on, and sees the right end. A port method without a recipe fails `test_every_crash_point_is_reached`.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from decimal import Decimal
from uuid import UUID

from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.questions import ContinueStep, QuestionAnswer
from planq.shared.kernel.states import JobStatus, QuestionKind, QuestionStatus, Settlement, Strategy
from planq.shared.kernel.store.signals import CANCELLED
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.subjects.jobs.store import AnsweredBy, Verdict
from planq.shared.subjects.questions.store import QuestionStore
from tests.faults.batching import BATCHING
from tests.faults.chaining import CHAINING
from tests.faults.conversing import CONVERSING
from tests.faults.delegating import kin, untold
from tests.faults.deploying import DEPLOYING
from tests.faults.ending import ENDING
from tests.faults.half_price import HALF_PRICE
from tests.faults.orchestrating import orchestrated
from tests.faults.remembering import REMEMBERING
from tests.faults.scene import MIXED, PATIENCE, Scene
from tests.faults.speaking import SPEAKING
from tests.faults.telling import TELLING
from tests.integration.llm.dialects import KEY, OPENAI_CHAT
from tests.integration.llm.wire import Reply, wire_server
from tests.support.claiming import claim_stage
from tests.support.ports import free_port
from tests.support.servers import FUNCTIONS
from tests.support.waiting import eventually

Recipe = Callable[[Scene, str], None]


def mixed(scene: Scene, point: str) -> None:
    """A chain, a fan-out with a join, a timer, a retry and an unsafe tool, in a plan of the caller's."""
    job_id = scene.submit(*MIXED)
    scene.died_at(point)
    scene.worker()
    scene.mixed_comes_out_right(job_id)


def ahead(scene: Scene, point: str) -> None:
    """Quick steps that run before their plan is stored, which is the second one of its worker."""
    sums = [("calculate", {"expression": text}) for text in ("40 + 2", "1 + 1")]
    name = scene.doomed(f"{point}@2")
    scene.ends(scene.submit(*sums))
    job_id = scene.submit(*sums)
    scene.dies(name)
    left = scene.steps(job_id)  # a worker that was slow to calculate has taken the steps over with the plan
    assert len(left) == (2 if point.endswith(":after") else 0)
    assert set(left) <= {"succeeded", "running"}
    scene.worker()
    job, steps = scene.ends(job_id)
    assert (job["status"], [step["output"]["result"] for step in steps]) == ("completed", [42, 2])
    assert [step["attempt"] for step in steps] == [2 if status == "running" else 1 for status in left or [""] * 2]


def waiting(scene: Scene, point: str) -> None:
    """A timer that is further away than those which a process sets itself: a sweeper fires it."""
    job_id = scene.submit(("wait", {"seconds": 6.0}), ("fault_note", {"text": "a"}))
    scene.died_at(point)
    scene.worker()
    scene.completes(job_id, "<a>")


def wide(scene: Scene, point: str) -> None:
    """More steps at once than a worker has room for: what is left over comes in messages for several."""
    job_id = scene.submit(*[("fault_note", {"text": "a"})] * 40)
    scene.dies(scene.doomed(point, concurrency=4))
    scene.worker()
    steps = scene.completes(job_id, "<a>")
    assert sum(step["attempt"] for step in steps) <= 40 + 4, "only what was under way ran again"


def unpublished(scene: Scene, point: str) -> None:
    """The API died before it published: the sweeper finds the job."""
    job_id = scene.submit(*MIXED, publish=False)
    scene.died_at(point)
    scene.worker()
    scene.mixed_comes_out_right(job_id)


def asked(scene: Scene, point: str) -> None:
    """A job that the model plans."""
    job_id = scene.submit(text="calculate 40 + 2")
    scene.died_at(point)
    scene.worker()
    job, steps = scene.ends(job_id)
    assert (job["status"], [step["output"] for step in steps]) == ("completed", [{"result": 42}])
    assert "42" in job["answer"]


def by_turns(scene: Scene, point: str) -> None:
    """A job whose model calls tools turn by turn."""
    job_id = scene.submit(text="calculate 40 + 2", strategy=Strategy.REACT)
    scene.died_at(point)
    scene.worker()
    job, steps = scene.ends(job_id)
    assert (job["status"], job["stop_reason"]) == ("completed", "answered")
    assert [step["output"] for step in steps] == [{"result": 42}]


def guided(scene: Scene, point: str) -> None:
    """A job whose model writes a guide before its turns."""
    job_id = scene.submit(text="calculate 40 + 2", strategy=Strategy.GUIDED)
    scene.died_at(point)
    scene.worker()
    job, steps = scene.ends(job_id)
    assert (job["status"], job["stop_reason"]) == ("completed", "answered")
    assert [(step["round"], step["output"]) for step in steps] == [(1, {"result": 42})]
    assert len(scene.read("SELECT 1 FROM plans WHERE source = 'guide'")) == 1


def refused(scene: Scene, point: str) -> None:
    """A plan over a tool that nobody offers."""
    job_id = scene.submit(("no_such_tool", {}))
    scene.died_at(point)
    scene.worker()
    job, steps = scene.ends(job_id)
    assert (job["status"], steps) == ("completed", [])
    assert "no_such_tool" in job["answer"]


def stopped_in_a_step(scene: Scene, point: str) -> None:
    """A worker that is told to stop dies while it gives its step back."""
    job_id = scene.submit(("fault_hold", {"until": "go"}))
    name = scene.doomed(point, PLANQ_DRAIN_SECONDS="0")
    scene.runs(job_id)
    scene.signal(name, signal.SIGTERM)
    scene.dies(name)
    (scene.folder / "go").touch()
    scene.worker()
    scene.completes(job_id, "attempt 2")


def stopped_in_a_stage(scene: Scene, point: str) -> None:
    """A worker that is told to stop dies while it gives its stage back."""
    name = scene.doomed(point, PLANQ_DRAIN_SECONDS="0")

    def stop() -> None:
        scene.signal(name, signal.SIGTERM)
        scene.dies(name)

    job_id = begun_stage(scene, stop)
    scene.worker()
    scene.mixed_comes_out_right(job_id)


def begun_stage(scene: Scene, then: Callable[[], None]) -> UUID:
    """Let a worker that has been started begin the PLAN stage of the mixed job, and do `then` in the middle of it."""
    eventually(lambda: scene.read("SELECT 1 FROM tools"), PATIENCE, what="the worker has published its tools")
    with scene.no_catalogue():
        job_id = scene.submit(*MIXED)
        held = "SELECT 1 FROM jobs WHERE id = %s AND stage_worker IS NOT NULL"
        eventually(lambda: scene.read(held, job_id), PATIENCE, what="the stage is claimed")
        then()
    return job_id


def lost_in_a_step(scene: Scene, point: str) -> None:
    """A worker that takes back the step of a killed one dies itself."""
    job_id = scene.submit(("fault_hold", {"until": "go"}))
    first = scene.worker()
    scene.runs(job_id)
    scene.stack.kill(first)
    scene.died_at(point)
    (scene.folder / "go").touch()
    scene.worker()
    scene.completes(job_id, "attempt 2")


PATIENT = {"PLANQ_MAX_WORKER_LOSSES": "50"}
"""For a step that is alone in workers which die of something else."""


def lost_in_quarantine(scene: Scene, point: str) -> None:
    """The step of two killed workers runs again in quarantine, and that worker dies, too."""
    job_id = scene.submit(("fault_hold", {"until": "go"}))
    for attempt in (1, 2):
        name = scene.worker(**PATIENT)
        eventually(lambda: scene.began(job_id, attempt), PATIENCE, what="it runs")  # noqa: B023
        scene.stack.kill(name)
    (scene.folder / "go").touch()
    scene.died_at(point, **PATIENT)
    scene.worker(**PATIENT)
    _, (step,) = scene.ends(job_id)
    assert step["status"] == "succeeded"


def lost_in_a_stage(scene: Scene, point: str) -> None:
    """A worker that takes back the stage of a killed one dies itself."""
    first = scene.worker()
    job_id = begun_stage(scene, lambda: scene.stack.kill(first))
    scene.died_at(point)
    scene.worker()
    scene.mixed_comes_out_right(job_id)


def lost_too_often_in_a_stage(scene: Scene, point: str) -> None:
    """A worker that gives a stage up dies itself."""
    first = scene.worker()
    job_id = begun_stage(scene, lambda: scene.stack.kill(first))
    scene.died_at(point, PLANQ_MAX_WORKER_LOSSES="1")
    scene.worker(PLANQ_MAX_WORKER_LOSSES="1")
    job, steps = scene.ends(job_id)
    assert (job["status"], job["error"]["code"], steps) == ("failed", "worker_lost", [])


_SMALL_WINDOW = f"""
CREATE OR REPLACE FUNCTION {FUNCTIONS}.planq_least_window() RETURNS int LANGUAGE sql IMMUTABLE AS $$ SELECT 4 $$"""


def windowed(scene: Scene, point: str) -> None:
    """A worker dies while steps of its job are held, for which those that end make room."""
    scene.read(_SMALL_WINDOW)
    job_id = scene.submit(*[("fault_note", {"text": "a"})] * 30)
    scene.dies(scene.doomed(point, concurrency=4))
    scene.worker(concurrency=4)
    steps = scene.completes(job_id, "<a>")
    assert sum(step["attempt"] for step in steps) <= 30 + 8, "only what was out ran again"


def opened(scene: Scene, point: str) -> None:
    """A worker with more slots dies while it opens a window that the one before it left."""
    scene.read(_SMALL_WINDOW)
    job_id = scene.submit(*[("fault_hold", {"until": "go"})] * 30)
    first = scene.worker(concurrency=4)
    scene.runs(job_id)
    scene.stack.kill(first)
    scene.dies(scene.doomed(point, concurrency=10))
    (scene.folder / "go").touch()
    scene.worker(concurrency=10)
    _, steps = scene.ends(job_id)
    assert {step["status"] for step in steps} == {"succeeded"}


def expired(scene: Scene, point: str) -> None:
    """A worker dies while it ends a plan whose time is over."""
    job_id = scene.submit(("fault_hold", {"until": "never"}), limits=Limits(plan_timeout_seconds=0.3))
    scene.died_at(point)
    scene.worker()
    job, steps = scene.ends(job_id)
    assert (job["status"], [step["status"] for step in steps]) == ("completed", ["failed"])
    assert "timeout" in steps[0]["error"]["code"]


def without_broker(scene: Scene, point: str) -> None:
    """A worker that cannot reach the broker dies while it puts wake-ups back."""
    job_id = scene.submit(*MIXED, publish=False)
    scene.died_at(point, BROKER_URL=f"redis://127.0.0.1:{free_port()}/0")
    scene.worker()
    scene.mixed_comes_out_right(job_id)


def stopped_idle(scene: Scene, point: str) -> None:
    """A worker that is told to stop dies while it gives its lease up."""
    name = scene.doomed(point)
    scene.completes(scene.submit(("fault_note", {"text": "a"})), "<a>")
    scene.signal(name, signal.SIGTERM)
    scene.dies(name)
    job_id = scene.submit(*MIXED)
    scene.worker()
    scene.mixed_comes_out_right(job_id)


def process_killed(scene: Scene, point: str) -> None:
    """The parent of the `cpu` pool dies while it hears that one of its processes was killed."""
    scene.worker()
    name = scene.doomed(point, "cpu")
    job_id = scene.submit(("fault_crunch", {"until": "go"}))
    scene.runs(job_id)
    scene.kill_child(name)
    scene.dies(name)
    (scene.folder / "go").touch()
    scene.worker("cpu")
    scene.completes(job_id, "attempt 2")


def idle(scene: Scene, point: str) -> None:
    """A worker that has had nothing to do for a while dies while it asks whether it has become deaf."""
    scene.died_at(point, PLANQ_CONSUMER_WATCHDOG_SECONDS="0.5")
    job_id = scene.submit(*MIXED)
    scene.worker()
    scene.mixed_comes_out_right(job_id)


def unanswered_claim(scene: Scene, point: str) -> None:
    """The answer to a claim was lost; the worker dies while it hands back what it holds without knowing."""
    name = scene.doomed(point)
    known = eventually(lambda: scene.read("SELECT id FROM workers"), PATIENCE, what="the worker is there")
    job_id = scene.submit(*MIXED, publish=False)
    store = PostgresJobStore(scene.caller.database, known[0]["id"], as_called)
    assert scene.caller.do(claim_stage(store, job_id, [JobStatus.QUEUED])) is not None
    scene.dies(name)
    scene.worker()
    scene.mixed_comes_out_right(job_id)


def large(scene: Scene, point: str) -> None:
    """An output that is kept apart from its step, and is needed whole by the next one."""
    text = "x" * 70_000
    job_id = scene.submit(("fault_note", {"text": text}), ("fault_note", {"text": "$0.output.text"}))
    scene.died_at(point)
    scene.worker()
    job, steps = scene.ends(job_id)
    assert (job["status"], [step["status"] for step in steps]) == ("completed", ["succeeded"] * 2)
    kept = scene.read("SELECT size FROM payloads ORDER BY size")
    around = len('{"text":""}')
    assert [row["size"] for row in kept] == [70_002 + around, 70_004 + around]


def overdue(scene: Scene, point: str) -> None:
    """A worker dies while it ends a job whose time is over."""
    job_id = scene.submit(("fault_hold", {"until": "never"}), limits=Limits(job_timeout_seconds=0.3))
    scene.died_at(point)
    scene.worker()
    job, _ = scene.ends(job_id)
    # Where the worker took longer to start than the job may live, it was still queued.
    assert (job["status"], job["error"]["code"].endswith("_timeout")) == ("failed", True)
    assert "0.3 s" in job["error"]["message"]
    assert scene.steps(job_id) in ([], ["failed"], ["cancelled"])


def paid(scene: Scene, point: str) -> None:
    """The price of a call is counted before it begins, so also of one that its worker's death kept from it."""
    job_id = scene.submit(("fault_paid", {"text": "a"}))
    scene.died_at(point)
    scene.worker()
    scene.completes(job_id, "<a>")
    attempts = 2 if point.endswith(":after") else 1
    assert scene.read("SELECT cost_usd FROM jobs") == [{"cost_usd": attempts * Decimal("0.25")}]


CHARGE = [("fault_charge", {"text": "a", "until": "never"}), ("fault_note", {"text": "$0.output.text"})]


def asks(scene: Scene, job_id: UUID) -> None:
    """Wait until a job asks what became of a call; say that it happened; see it end."""
    eventually(lambda: scene.read("SELECT 1 FROM jobs WHERE open_questions > 0"), PATIENCE, what="it asks")
    assert scene.steps(job_id) == ["waiting", "pending"]
    asked = scene.read("SELECT question_id, open_questions FROM steps JOIN jobs j ON j.id = job_id WHERE index = 0")
    assert [(row["open_questions"], row["question_id"] is None) for row in asked] == [(1, False)]
    verdict = Verdict(Settlement.HAPPENED, output={"text": "told"})
    settled = scene.caller.do(scene.caller.requests.settle("default", job_id, 0, verdict))
    assert settled.applied
    scene.caller.publisher.publish_soon(settled.wakes)
    scene.completes(job_id, "told", "<told>")
    assert scene.paid()[f"{job_id}/0"] == 1


def approved(scene: Scene, point: str) -> None:
    """A worker dies before it asks whether a tool may be called; the next one asks, and then may call it."""
    policy = {"PLANQ_TOOL_POLICY": '{"fault_note": "ask"}'}
    job_id = scene.submit(("fault_note", {"text": "a"}))
    scene.died_at(point, **policy)
    scene.worker(**policy)
    eventually(lambda: scene.read("SELECT 1 FROM questions WHERE status = 'open'"), PATIENCE, what="it asks")
    (asked,) = scene.read("SELECT id FROM questions WHERE status = 'open'")
    store = QuestionStore(scene.caller.database)
    said = QuestionAnswer(QuestionKind.APPROVAL, QuestionStatus.ACCEPTED, {})
    by = AnsweredBy(is_operator=True)
    answer = scene.caller.do(store.answer("default", asked["id"], said, ContinueStep(), by))
    assert answer.applied
    scene.caller.publisher.publish_soon(answer.wakes)
    scene.completes(job_id, "<a>")


def stopped_in_a_charge(scene: Scene, point: str) -> None:
    """A worker that is told to stop dies while it asks what became of the call that it cuts off."""
    job_id = scene.submit(*CHARGE)
    name = scene.doomed(point, PLANQ_DRAIN_SECONDS="0")
    scene.runs(job_id)
    scene.signal(name, signal.SIGTERM)
    scene.dies(name)
    scene.worker()
    asks(scene, job_id)


def lost_in_a_charge(scene: Scene, point: str) -> None:
    """A worker dies while it asks what became of a killed worker's call."""
    job_id = scene.submit(*CHARGE)
    first = scene.worker()
    scene.runs(job_id)
    scene.stack.kill(first)
    scene.died_at(point)
    scene.worker()
    asks(scene, job_id)


def never_answered(scene: Scene, point: str) -> None:
    """Nobody answers, and the worker that ends the waiting dies."""
    job_id = scene.submit(*CHARGE, limits=Limits(human_wait_seconds=0.3))
    first = scene.worker()
    scene.runs(job_id)
    scene.stack.kill(first)
    scene.died_at(point)
    scene.worker()
    job, steps = scene.ends(job_id)
    assert (job["status"], [step["status"] for step in steps]) == ("completed", ["failed", "skipped"])
    assert steps[0]["error"]["code"] == "human_wait_timeout"
    assert scene.paid()[f"{job_id}/0"] == 1


def found_out(scene: Scene, point: str) -> None:
    """The worker of a call that can be looked up was lost, and the one that looks it up dies."""
    job_id = scene.submit(("fault_book", {"text": "a"}), ("fault_note", {"text": "$0.output.text"}))
    scene.died_at("tool.call:after")
    assert scene.paid()[f"{job_id}/0"] == 1
    scene.died_at(point)
    scene.worker()
    scene.completes(job_id, "<a>", "<<a>>")
    assert scene.ran()[f"{job_id}/0"] == 1, "it was looked up, not called again"


def cut_off_in_a_model_call(scene: Scene, point: str) -> None:
    """A worker dies while it records what an open model call cost that a cancel cut off."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        job_id = scene.submit(text="calculate 1 + 1", model="openai:gpt-test")
        name = scene.doomed(point, OPENAI_BASE_URL=url, OPENAI_API_KEY="no-key-here")
        connection, _ = silent.accept()
        with connection:
            assert connection.recv(1), "the model was asked"
            assert scene.caller.do(scene.caller.requests.cancel("default", job_id))
            scene.read("SELECT pg_notify(%s, %s)", CANCELLED, str(job_id))
            scene.dies(name)
    scene.worker()
    job, _ = scene.ends(job_id)
    assert job["status"] == "cancelled"
    scene.completes(scene.submit(("fault_note", {"text": "a"})), "<a>")


def confirmed(scene: Scene, point: str) -> None:
    """A worker dies while the tool asks whether it may act; nothing has happened, and the next attempt does it."""
    job_id = scene.submit(("fault_sure_book", {"text": "a"}))
    scene.died_at(point)
    assert scene.paid()[f"{job_id}/0"] == 0
    scene.worker()
    scene.completes(job_id, "<a>")
    assert scene.paid()[f"{job_id}/0"] == 1


def with_a_model_that_is_back(scene: Scene, point: str) -> None:
    """A worker dies while the first reply after an outage wakes the stages that wait for their turns."""
    with wire_server() as model:
        away, back = Reply({"error": {"message": "busy"}}, 503), Reply(OPENAI_CHAT.reply("Twelve.", None))
        model.script(*[away] * 8, back)
        env = {"OPENAI_BASE_URL": f"{model.url}/v1", "OPENAI_API_KEY": KEY, "PLANQ_MODEL_ATTEMPTS": "1"}
        jobs = [scene.submit(text="what is 3 * 4?", model=OPENAI_CHAT.model) for _ in range(8)]
        scene.died_at(point, **env)
        scene.worker(**env)
        ended = [scene.ends(job_id)[0] for job_id in jobs]
    assert {(job["status"], job["answer"]) for job in ended} == {("completed", "Twelve.")}
    scene.sound()


def without_a_model(scene: Scene, point: str) -> None:
    """A worker dies while it lets a stage wait for a model that is away."""
    with wire_server() as model:
        model.script(Reply({"error": {"message": "busy"}}, 503))
        env = {"OPENAI_BASE_URL": f"{model.url}/v1", "OPENAI_API_KEY": KEY, "PLANQ_MODEL_ATTEMPTS": "1"}
        job_id = scene.submit(text="what is 3 * 4?", model=OPENAI_CHAT.model)
        scene.died_at(point, **env)
        model.script(Reply(OPENAI_CHAT.reply("Twelve.", None)))
        scene.worker(**env)
        job, _ = scene.ends(job_id)
    assert (job["status"], job["answer"], job["model_calls"]) == ("completed", "Twelve.", 1)
    scene.sound()


def overridden(scene: Scene, point: str) -> None:
    """An argument that is not the caller's to choose is dropped, and told of once."""
    job_id = scene.submit(("fault_whose", {"text": "a", "whose": "mallory"}))
    scene.died_at(point)
    scene.worker()
    (step,) = scene.completes(job_id, "a for nobody")
    assert step["status"] == "succeeded"
    (told,) = scene.told(job_id, "parameter_override")
    assert told["data"] == {"round": 0, "index": 0, "tool": "fault_whose", "parameters": ["whose"]}


REACH: dict[str, Recipe] = {
    "store.claim": mixed,
    "catalogue.tools": mixed,
    "store.accept_plan": mixed,
    "store.refuse_plan": refused,
    "store.succeed_step": mixed,
    "store.fail_step": mixed,
    "store.delegate_step": kin,
    "store.children": kin,
    "store.suspend_step": mixed,
    "store.fire_timer": mixed,
    "store.end_job": mixed,
    "store.serve_end": kin,
    "store.ask_step": stopped_in_a_charge,
    "store.approvals": approved,
    "store.steps_to_ask_about": approved,
    "store.record_calls": cut_off_in_a_model_call,
    "store.charge_step": paid,
    "store.holds_step": confirmed,
    "store.note": overridden,
    "store.keep_traceback": mixed,
    "store.release": stopped_in_a_step,
    "store.retry_stage": without_a_model,
    "store.wake_awaiting": with_a_model_that_is_back,
    "publisher.publish": wide,
    "planner.plan": asked,
    "planner.guide": guided,
    "planner.turn": by_turns,
    "responder.respond": mixed,
    "tool.call": mixed,
    "tool.find_out": found_out,
    "tool.gather": kin,
    "orchestrations.journal": orchestrated,
    "payloads.put": large,
    "payloads.get": large,
    **BATCHING,
    **HALF_PRICE,
    **ENDING,
    **CHAINING,
    **CONVERSING,
    **DEPLOYING,
    **REMEMBERING,
    **SPEAKING,
    **TELLING,
    "worker_registry.register": mixed,
    "worker_registry.publish_tools": mixed,
    "worker_registry.heartbeat": mixed,
    "worker_registry.held": mixed,
    "worker_registry.hand_back": unanswered_claim,
    "worker_registry.unanswered_wakes": idle,
    **dict.fromkeys(("worker_registry.enter_quarantine", "worker_registry.leave_quarantine"), lost_in_quarantine),
    "store.claim_suspects": lost_in_quarantine,
    "worker_registry.abandon": process_killed,
    "worker_registry.forget": stopped_idle,
    **dict.fromkeys(("sweep.due_timers", "sweep.fire_timer"), waiting),
    **dict.fromkeys(("sweep.look", "sweep.tidy", "sweep.with_jobs"), mixed),
    "sweep.end_lease": lost_in_a_step,
    "sweep.lost_steps": lost_in_a_step,
    "sweep.take_back_step": lost_in_a_step,
    "sweep.ask_lost_step": lost_in_a_charge,
    "sweep.lost_stages": lost_in_a_stage,
    "sweep.take_back_stage": lost_in_a_stage,
    "sweep.fail_stage": lost_too_often_in_a_stage,
    "sweep.open_windows": opened,
    "sweep.expired_plans": expired,
    "sweep.expire_plan": expired,
    "sweep.expired_jobs": overdue,
    "sweep.expire_job": overdue,
    "question_sweep.expired": never_answered,
    "question_sweep.expire": never_answered,
    **dict.fromkeys(("sweep.unserved_ends", "sweep.serve_ends"), untold),
    "sweep.take_due_wakes": unpublished,
    "sweep.return_wakes": without_broker,
    "sweep_publisher.publish": unpublished,
}


def unsafe(succeeds: bool, *, effects: int) -> Recipe:
    """Return a recipe whose first step is an unsafe tool: how it ends, and how often it took effect."""

    def recipe(scene: Scene, point: str) -> None:
        job_id = scene.submit(("fault_pay", {"text": "a"}), ("fault_note", {"text": "$0.output.text"}))
        scene.died_at(point)
        scene.worker()
        if succeeds:
            scene.completes(job_id, "<<a>>")
        else:
            job, steps = scene.ends(job_id)
            assert (job["status"], [step["status"] for step in steps]) == ("completed", ["failed", "skipped"])
            assert steps[0]["error"]["code"] == "outcome_unknown"
        assert scene.paid()[f"{job_id}/0"] == effects

    return recipe


UNSAFE: dict[str, Recipe] = {
    "store.accept_plan:before": unsafe(True, effects=1),
    "store.accept_plan:after": unsafe(False, effects=0),  # it has taken the step over
    "tool.call:before": unsafe(False, effects=0),
    "tool.call:after": unsafe(False, effects=1),
    "store.succeed_step:before": unsafe(False, effects=1),
    "store.succeed_step:after": unsafe(True, effects=1),
}
