"""The judge on the CPU, end to end, on small tasks; what it promises about contracts, weights, seeds and replay."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
from cudal1_data import load_suite
from cudal1_env.campaigns.replay import replay
from cudal1_env.errors import SandboxError, SettingsError, TaskError, TooLargeError
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.judge.measure import record
from cudal1_env.judge.measure.arm import Arm
from cudal1_env.judge.measure.case import Built
from cudal1_env.judge.measure.record import Seen
from cudal1_env.judge.measure.timing.trial import Trial
from cudal1_env.judge.measure.timing.trials import Trials
from cudal1_env.judge.oracle.client import OracleClient
from cudal1_env.judge.oracle.pool import WARM_SETS, Pool
from cudal1_env.judge.oracle.samples import InputSet
from cudal1_env.records import Evaluation, Precision, Status
from doubles.interrupts import interrupted
from doubles.judges import QUICK, own_zygotes
from task_programs import ADD, LINEAR, candidate, reference


def test_an_honest_program_is_correct_and_measured() -> None:
    with Judge() as judge:
        one = judge.evaluate(ADD, candidate("return torch.add(x[1], x[0], alpha=2)"))
    assert one.status is Status.CORRECT, one.message
    assert one.speedup is not None
    assert one.calls > 4
    assert one.full_checks >= 1
    assert one.trials == len(one.samples_ms) == len(one.reference_shares) >= 1
    assert one.rewarded_low is not None
    assert one.rewarded_low <= one.speedup.low
    assert one.stealable_ms is not None
    assert one.overhead_ms is not None
    assert 0 < one.stealable_ms < one.overhead_ms
    assert one.errors[0].error <= one.errors[0].tolerance
    assert 0 < one.seconds.measure_s <= one.seconds.lease_s <= one.seconds.total_s
    assert {"pid-namespace", "seccomp"} <= {*one.sandbox, *one.sandbox_missing}
    assert one.seed is None
    assert one.seed_commitment is not None


@pytest.mark.parametrize(
    ("forward", "status"),
    [
        ("return x[0] * 2", Status.WRONG_OUTPUT),
        ("return x[0] * 2.0002 + x[1]", Status.WRONG_OUTPUT),
        ("return (x[0] * 2 + x[1]).half().float()", Status.WRONG_OUTPUT),
        ("return (x[0] * 2 + x[1]).double()", Status.WRONG_CONTRACT),
        ("return (x[0] * 2 + x[1]).flatten()", Status.WRONG_CONTRACT),
        ("return [x[0] * 2 + x[1], x[0]]", Status.WRONG_CONTRACT),
        ("return 'done'", Status.WRONG_CONTRACT),
        ("return x[1].add_(x[0], alpha=2)", Status.WRONG_CONTRACT),
        ("return (x[0] * 2 + x[1]).to_sparse()", Status.WRONG_CONTRACT),
        ("raise ValueError('no')", Status.RUNTIME_ERROR),
        ("return torch.empty(1 << 45)", Status.OUT_OF_MEMORY),
    ],
)
def test_incorrect_programs_get_their_status(judge: Judge, forward: str, status: Status) -> None:
    one = judge.evaluate(ADD, candidate(forward))
    assert one.status is status, one.message
    assert one.speedup is None


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("", Status.NO_CODE),
        ("x = 1", Status.NO_CODE),
        ("class ModelNew(:", Status.SYNTAX_ERROR),
        ("x = '\0'", Status.SYNTAX_ERROR),
        ("\udcff", Status.SYNTAX_ERROR),
        ("import nothing_of_that_name", Status.BUILD_ERROR),
        ("import os\nos.abort()", Status.CRASH),
    ],
)
def test_programs_that_cannot_be_imported(judge: Judge, source: str, status: Status) -> None:
    one = judge.evaluate(ADD, source)
    assert one.status is status, one.message
    assert Evaluation.model_validate_json(one.model_dump_json()) == one


@pytest.mark.slow
def test_strided_expanded_and_reused_outputs_are_fine(judge: Judge) -> None:
    transposed = "return (x[0].t().contiguous() * 2 + x[1].t()).t()"
    assert judge.evaluate(ADD, candidate(transposed)).status is Status.CORRECT
    column = "y = torch.zeros(256, 512, 40); y[:, :, 0] = x[0] * 2 + x[1]; return y[:, :, 0]"
    assert judge.evaluate(ADD, candidate(column)).status is Status.CORRECT
    reused = "torch.add(x[1], x[0], alpha=2, out=self.out); return self.out"
    assert judge.evaluate(ADD, candidate(reused, init="self.out = torch.empty(256, 512)")).status is Status.CORRECT


def test_an_output_that_is_an_input_is_refused_unless_the_reference_returns_it(judge: Judge) -> None:
    identity = reference("return [x[0], x[0] + 1]", "[torch.randn(64, 64)]").model_copy(update={"id": "file/identity"})
    same = judge.evaluate(identity, candidate("return [x[0], x[0] + 1]"), precision="correct")
    assert same.status is Status.CORRECT
    plus_zero = reference("return x[0] + 0", "[torch.randn(64, 64)]").model_copy(update={"id": "file/plus_zero"})
    assert judge.evaluate(plus_zero, candidate("return x[0]")).status is Status.WRONG_CONTRACT


def test_weights_are_the_judges_where_the_state_agrees(judge: Judge) -> None:
    layers = "self.lin = nn.Linear(128, 64); self.norm = nn.LayerNorm(64)"
    honest = judge.evaluate(LINEAR, candidate("return self.norm(self.lin(x[0]))", init=layers), precision="correct")
    assert (honest.status, honest.weights) == (Status.CORRECT, "loaded")
    # A default LayerNorm scales by 1 and adds 0: leaving that out is only right for default weights.
    skipped = "return nn.functional.layer_norm(self.lin(x[0]), (64,))"
    without = judge.evaluate(LINEAR, candidate(skipped, init=layers), precision="correct")
    assert without.status is Status.WRONG_OUTPUT
    folded = layers + "; self.folded = self.lin.weight.detach().clone()"
    stale = "return self.norm(nn.functional.linear(x[0], self.folded, self.lin.bias))"
    kept = judge.evaluate(LINEAR, candidate(stale, init=folded), precision="correct")
    assert kept.status is Status.WRONG_OUTPUT


def test_integer_boolean_and_half_outputs(judge: Judge) -> None:
    task = reference(
        "return x[0].argmax(1), x[0] > 0, x[0].bfloat16() + 1, x[1] * 3",
        "[torch.randn(128, 256), torch.randint(0, 99, (1000,))]",
    ).model_copy(update={"id": "file/kinds"})
    good = "m = x[0].max(1).indices; return m, x[0].gt(0), x[0].to(torch.bfloat16) + 1, x[1] + x[1] + x[1]"
    assert judge.evaluate(task, candidate(good), precision="correct").status is Status.CORRECT
    bad = "m = x[0].max(1).indices; m[3] += 1; return m, x[0].gt(0), x[0].to(torch.bfloat16) + 1, x[1] * 3"
    assert judge.evaluate(task, candidate(bad), precision="correct").status is Status.WRONG_OUTPUT


def test_a_parameter_that_is_an_output_keeps_its_value(judge: Judge) -> None:
    init, answer = "self.lin = nn.Linear(128, 64)", "return self.lin(x[0]), self.lin.bias"
    task = reference(answer, "[torch.randn(32, 128)]", init=init).model_copy(update={"id": "file/own_bias"})
    one = judge.evaluate(task, candidate(answer, init=init), precision="correct")
    assert one.status is Status.CORRECT, one.message


def test_constructor_arguments_arrive_as_they_are(judge: Judge) -> None:
    task = reference(
        "return x[0] * self.a + self.b[1]",
        "[torch.randn(64, 64)]",
        init="self.a, self.b = sizes",
        arguments="[2.5, (1, 3)]",
    ).model_copy(update={"id": "file/arguments"})
    good = candidate("assert type(self.b) is tuple; return x[0] * self.a + self.b[1]", init="self.a, self.b = sizes")
    assert judge.evaluate(task, good, precision="correct").status is Status.CORRECT


def test_a_random_reference_and_a_broken_one_are_task_errors(judge: Judge) -> None:
    random = reference("return nn.functional.dropout(x[0])", "[torch.randn(64, 64)]")
    with pytest.raises(TaskError, match="function of the inputs"):
        judge.evaluate(random.model_copy(update={"id": "file/random"}), candidate("return x[0]"))
    broken = reference("return x[0] @ x[0].t()[:3]", "[torch.randn(64, 32)]")
    with pytest.raises(TaskError, match="reference failed"):
        judge.evaluate(broken.model_copy(update={"id": "file/broken"}), candidate("return x[0]"))


def test_an_unknown_precision_is_refused_by_name(judge: Judge) -> None:
    unknown, words = cast("Precision", "corect"), "unknown precision 'corect'; did you mean 'correct'"
    with pytest.raises(SettingsError, match=words):
        judge.evaluate(ADD, candidate("return x[0]"), precision=unknown)
    with pytest.raises(SettingsError, match=words):
        judge.evaluate_many([(ADD, candidate("return x[0]"))], precision=unknown)


def test_an_interrupt_ends_a_verdict_at_once() -> None:
    with Judge(QUICK) as judge:
        judge.evaluate(ADD, "x = 1")  # starts what a verdict needs
        with interrupted(3.0, within_s=20.0):
            judge.evaluate(ADD, candidate("return x[0] * 2 + x[1]", top="import time\ntime.sleep(60)"))


def test_evaluate_many_keeps_the_order(judge: Judge) -> None:
    good, bad = candidate("return x[0] * 2 + x[1]"), candidate("return x[0]")
    other = LINEAR.model_copy(update={"id": "file/other"})
    results = judge.evaluate_many([(ADD, good), (other, "x = 1"), (ADD, bad), (ADD, "")])
    assert [one.status for one in results] == [
        Status.CORRECT,
        Status.NO_CODE,
        Status.WRONG_CONTRACT,
        Status.NO_CODE,
    ]


def note_steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return a list that gets each question to an oracle, and "measured" for each trial, with the task."""
    steps: list[tuple[str, str]] = []
    ask, trial = OracleClient.ask, Trials._trial

    def noting(self: OracleClient, op: str, *given: Any, **named: Any) -> Any:
        steps.append((self.task.id, op))
        return ask(self, op, *given, **named)

    def measuring(self: Trials, built: Built, pool: Pool, seen: Seen) -> None:
        steps.append((pool.task.id, "measured"))
        trial(self, built, pool, seen)

    monkeypatch.setattr(OracleClient, "ask", noting)
    monkeypatch.setattr(Trials, "_trial", measuring)
    return steps


FAST = candidate("return torch.add(x[1], x[0], alpha=2)")
OTHER_ADD = ADD.model_copy(update={"id": "file/other", "source": ADD.source + "# other\n"})


def test_a_device_may_make_first_sets_beside_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = note_steps(monkeypatch)
    with Judge(QUICK) as judge:
        monkeypatch.setattr(judge.device, "prepares_ahead", True)
        found = judge.evaluate_many([(ADD, FAST), (OTHER_ADD, FAST), (OTHER_ADD, "")])
    assert [one.status for one in found] == [Status.CORRECT, Status.CORRECT, Status.NO_CODE]
    first = steps.index((ADD.id, "measured"))
    for task in (ADD, OTHER_ADD):
        assert {(task.id, "make"), (task.id, "probe")} <= set(steps[:first])
    assert "probe" not in {op for _, op in steps[first:]}


@pytest.mark.parametrize("end", [1.0, 2.0])
def test_what_limits_rewards_above_1_is_searched_once_after_measuring(
    monkeypatch: pytest.MonkeyPatch, end: float
) -> None:
    monkeypatch.setattr(record, "rewarded_low", lambda *given: end)
    steps = note_steps(monkeypatch)
    with Judge(QUICK) as judge:
        found = judge.evaluate_many([(ADD, FAST), (OTHER_ADD, FAST)])
        again = judge.evaluate(ADD, FAST)
    assert [one.status for one in [*found, again]] == [Status.CORRECT] * 3
    searches = [at for at, (_, op) in enumerate(steps) if op in {"recurrence", "unseen"}]
    if end > 1:
        assert sorted(steps[at] for at in searches) == sorted(
            (task.id, op) for task in (ADD, OTHER_ADD) for op in ("recurrence", "unseen")
        )
        assert [op for _, op in steps[: searches[0]]].count("measured") == 2
    else:
        assert not searches


def test_a_search_that_lacks_memory_is_repeated_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "rewarded_low", lambda *given: 2.0)
    open_pools, ask = list[int](), Pool.recurrence

    def short(self: Pool) -> tuple[int, list[int], list[int]]:
        open_pools.append(len(judge._pools))
        if len(judge._pools) > 1:
            raise TooLargeError("no room")
        return ask(self)

    monkeypatch.setattr(Pool, "recurrence", short)
    with Judge(QUICK) as judge:
        found = judge.evaluate_many([(ADD, FAST), (OTHER_ADD, FAST)])
    assert [one.status for one in found] == [Status.CORRECT] * 2
    assert open_pools[:3] == [2, 2, 2], "both side by side, then the first again"
    assert 1 in open_pools


@pytest.mark.slow
def test_no_program_is_timed_on_a_set_that_another_trial_had(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[int] = []
    next_sets = Trial._next_sets

    def noting(self: Trial) -> list[InputSet]:
        found = next_sets(self)
        met.extend(one.index for one in found)
        return found

    monkeypatch.setattr(Trial, "_next_sets", noting)
    program = candidate("return torch.add(x[1], x[0], alpha=2)")
    with Judge() as judge:
        first, second = (judge.evaluate(ADD, program) for _ in range(2))
        assert len(met) == len(set(met)) > 2 * 8
        assert first.first_set == WARM_SETS < min(met) < second.first_set
        seeds = judge.retire()
    assert second.seed_commitment is not None
    met.clear()
    with Judge() as other:
        replay(other, second.model_copy(update={"seed": seeds[second.seed_commitment]}))
    assert min(met) > second.first_set >= first.first_set


@pytest.mark.slow
def test_a_reference_that_dies_while_it_stands_still_is_the_tasks_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    go = Arm.go

    def kill_first(self: Arm, key: Sequence[int]) -> int:
        os.kill(self.worker.pid, signal.SIGKILL)
        return go(self, key)

    monkeypatch.setattr(Arm, "go", kill_first)
    with Judge() as judge, pytest.raises(TaskError, match="the reference failed in a timed call"):
        judge.evaluate(ADD, candidate("return x[0] * 2 + x[1]"))


def test_replay_repeats_the_numerics_exactly() -> None:
    with Judge(QUICK) as first:
        first.evaluate(ADD, candidate("return x[0] * 2 + x[1]"))
        one = first.evaluate(ADD, candidate("return torch.add(x[1], x[0], alpha=2)"))
        seeds = first.retire()
    assert one.seed_commitment is not None
    record = one.model_copy(update={"seed": seeds[one.seed_commitment]})
    with Judge(QUICK) as second:
        again = replay(second, record)
        assert again.repeated.seed_commitment == one.seed_commitment
    assert again.same_status
    assert again.same_tolerances


@pytest.mark.slow
def test_a_pools_seed_is_disclosed_only_when_it_retires() -> None:
    with Judge(QUICK) as one:
        record = one.evaluate(ADD, candidate("return x[0]"))
        assert record.seed is None
        seeds = one.retire()
        assert record.seed_commitment in seeds
        later = one.evaluate(ADD, candidate("return x[0]"))
        assert later.seed_commitment not in seeds


@pytest.mark.slow
def test_report_precision_takes_three_trials_and_builds_once() -> None:
    # Each launch begins from the folder as the first import left it, so none sees more than that one's mark.
    marking = (
        "import os\npath = os.environ['TORCH_EXTENSIONS_DIR'] + '.built'\n"
        "marks = open(path).read() if os.path.exists(path) else ''\nopen(path, 'w').write(marks + 'x')\n"
        "assert len(marks) <= {most}, 'found ' + marks"
    )
    with Judge() as one:
        record, stopped = (
            one.evaluate(ADD, candidate("return x[0] * 2 + x[1]", top=marking.format(most=most)), precision="report")
            for most in (1, 0)
        )
    assert record.status is Status.CORRECT, record.message
    assert record.trials >= 3
    assert "found x (" in stopped.message, stopped.message


def test_unknown_layers_are_refused() -> None:
    with pytest.raises(SandboxError, match="unknown sandbox layer"):
        Judge(JudgeSettings(require_sandbox=("moat",)))


def test_nothing_is_left_behind() -> None:
    gc.collect()  # what earlier tests left is closed now, not meanwhile
    before = len(os.listdir("/proc/self/fd"))
    with own_zygotes(), Judge() as one:
        one.evaluate(ADD, candidate("return x[0]"))
        one.evaluate(ADD, "import os\nos._exit(0)")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.slow
def test_a_starter_variant_with_a_compiler(judge: Judge) -> None:
    task = load_suite("starter")["starter/diag_matmul"]
    c = next(variant for variant in task.variants if "compiler" in variant.needs)
    one = judge.evaluate(task, c.source)
    assert one.status is Status.CORRECT, one.message + one.stderr


@pytest.mark.slow
def test_sets_beyond_the_memory_for_them_are_made_again() -> None:
    seed = bytes(range(16))
    program = candidate("return torch.add(x[1], x[0], alpha=2)")
    made = list[list[InputSet]]()
    for settings in (JudgeSettings(device="cpu", pool_bytes=1), JudgeSettings(device="cpu")):
        with Judge(settings) as one:
            record = one.evaluate(ADD, program)
            assert record.status is Status.CORRECT, record.message
            assert record.seconds.oracle_s > 0
            assert any(pool.size_bytes for pool in one._pools.values()) is (settings.pool_bytes > 1)
            with contextlib.closing(one._pools.new(one._case(ADD, program, "training", seed))) as pool:
                made += [pool.sets(0, 10), pool.sets(8, 10)]
    few, few_again, many, many_again = made
    assert all(one is other for one, other in zip(many[8:], many_again, strict=True)), "kept"
    assert not any(one is other for one, other in zip(few[8:], few_again, strict=True)), "made again"
    for one, other in zip([*few, *few_again], [*many, *many_again], strict=True):
        assert (one.index, one.distribution) == (other.index, other.distribution)
        assert np.array_equal(one.inputs, other.inputs)
        for answer, same in zip(one.answers, other.answers, strict=True):
            assert answer.scale == same.scale
            assert np.array_equal(answer.limits, same.limits)
            assert np.array_equal(answer.positions, same.positions)
            assert np.array_equal(answer.values, same.values)


@pytest.mark.slow
def test_a_program_may_return_what_torch_negates_when_it_is_read(judge: Judge) -> None:
    task = reference("return torch.sin(x[0]) + x[0], x[0] * 3", "[torch.randn(256, 512)]")
    lazy = "torch.complex(x[0], -(torch.sin(x[0]) + x[0])).conj().imag"
    one = judge.evaluate(task, candidate(f"return {lazy}, x[0] * 3"))
    assert one.status is Status.CORRECT, one.message
    task = reference("return torch.sin(x[0]) + x[0]", "[torch.randn(256, 512)]")
    one = judge.evaluate(task, candidate(f"return {lazy}"))
    assert one.status is Status.CORRECT, one.message


def test_a_program_may_trace_a_part_of_itself_in_its_first_call(judge: Judge) -> None:
    task = reference("return torch.relu(x[0]) + 1", "[torch.randn(256, 512)]")
    traced = (
        "if not hasattr(self, 'traced'):\n            self.traced = torch.jit.trace(nn.ReLU(), x[0])\n"
        "        return self.traced(x[0]) + 1"
    )
    one = judge.evaluate(task, candidate(traced), precision="correct")
    assert one.status is Status.CORRECT, one.message


def test_outputs_in_a_dictionary_go_by_their_names(judge: Judge) -> None:
    task = reference("return {'sum': x[0].sum(1), 'max': x[0].amax(1)}", "[torch.randn(256, 512)]")
    good, bad = "{'max': x[0].amax(1), 'sum': x[0].sum(1)}", "{'sum': x[0].amax(1), 'max': x[0].sum(1)}"
    one = judge.evaluate(task, candidate(f"return {good}"), precision="correct")
    assert one.status is Status.CORRECT, one.message
    swapped = judge.evaluate(task, candidate(f"return {bad}"), precision="correct")
    assert swapped.status is Status.WRONG_OUTPUT


def test_a_reference_may_return_a_diagonal(judge: Judge) -> None:
    task = reference("return torch.diagonal(x[0] @ x[1])", "[torch.randn(160, 96), torch.randn(96, 160)]")
    one = judge.evaluate(task, candidate("return (x[0] * x[1].t()).sum(1)"), precision="correct")
    assert one.status is Status.CORRECT, one.message


def test_a_judge_on_a_cpu_is_made_without_torch() -> None:
    code = (
        "import sys\nfrom cudal1_env.judge import Judge, JudgeSettings\nJudge(JudgeSettings(device='cpu')).close()\n"
        "print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
