"""Settings of the judge. A default is a decision with a reason."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from cudal1_env.baselines import BaselineName


class JudgeSettings(BaseModel):
    """How candidates are judged on this machine."""

    model_config = ConfigDict(frozen=True)

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where programs run; `auto` takes a GPU when the judge supports one here."""
    arithmetic: Literal["strict", "tf32"] = "strict"
    """`tf32` lets both arms round the factors of products to TF32, and so widens the tolerance; GPUs only."""
    baselines: tuple[Literal["all"] | BaselineName, ...] = ()
    """Other ways to run the reference against which correct programs are measured; `all` leaves out
    `compile-max-autotune`, which takes minutes for a task. Each is measured once for each task, machine and version."""
    policy: Literal["strict", "kernelbench"] = "strict"
    """`kernelbench` adds a second verdict to each record, by KernelBench's rules: the constructor's weights, its
    tolerance, no clock. Status, speedup and reward stay those of `strict`."""
    profile: Literal["report", "always", "never"] = "report"
    """When a correct program is profiled in an untimed call: at `report` precision, because that takes as long as
    another start of the program."""
    require_sandbox: tuple[str, ...] = ()
    """Sandbox layers without which the judge refuses to work; the rest is used where the machine has it."""
    oracle_timeout_s: float = Field(default=300.0, gt=0)
    """Limit for each request to the reference: its import, a call, a set of inputs with float64 answers."""
    build_timeout_s: float = Field(default=180.0, gt=0)
    """Limit for importing a candidate, compilation included (a C++ extension takes 30 s on an idle core)."""
    warmup_timeout_s: float = Field(default=60.0, gt=0)
    """Limit for the constructor and all untimed calls together, autotuning and graph capture among them."""
    baseline_warmup_timeout_s: float = Field(default=300.0, gt=0)
    """The same for a baseline, whose text is the task's: a network of a hundred layers compiles for minutes."""
    call_timeout_factor: float = Field(default=1000.0, gt=1)
    """Limit of a timed call, as a multiple of the reference's latency (the paper's rule) ..."""
    call_timeout_s: float = Field(default=5.0, gt=0)
    """... but not longer than this, or four times the reference's latency where that is more."""
    memory_bytes: int = Field(default=8 << 30, gt=0)
    """Memory that a worker may allocate."""
    scratch_bytes: int = Field(default=1 << 30, gt=0)
    """Size of a worker's private temporary folder."""
    max_processes: int = Field(default=256, gt=0)
    """Processes and threads of one worker (compilers run in it)."""
    build_store_bytes: int = Field(default=8 << 30, ge=0)
    """Disk space for what programs compiled, kept between runs in the user's cache folder; 0 keeps nothing. A CUDA
    extension takes about 7 MB."""
    pool_bytes: int = Field(default=2 << 30, gt=0)
    """Memory for input sets and answers, over all tasks; the oldest task's are dropped first."""
    max_pools: int = Field(default=12, ge=1)
    """Tasks whose oracle process and input sets are kept at a time."""
    pool_candidates: int = Field(default=64, ge=1)
    """Candidates after which a task's secrets (seeds, weights, untimed inputs) are replaced ..."""
    pool_s: float = Field(default=600.0, gt=0)
    """... or seconds."""
    lanes: int = Field(default=8, ge=1)
    """Verdicts without a clock (`correct` precision) that are made side by side; no more than there are cores."""
    sets_training: int = Field(default=40, ge=8)
    """On a CPU, input sets for the timed pairs of one `training` trial; each is used once for each arm."""
    sets_report: int = Field(default=78, ge=8)
    """The same for each trial of `report`."""
    budget_training_s: float = Field(default=0.8, gt=0)
    """Seconds of measurement after which a `training` evaluation takes the interval as it stands."""
    budget_report_s: float = Field(default=20.0, gt=0)
    """The same for `report`, over all trials."""
    budget_report_gpu_s: float = Field(default=7.0, gt=0)
    """The same on a GPU, for which others wait."""
    sample_ms: float = Field(default=8.0, gt=0)
    """On a CPU a pair repeats samples of one call until an arm's last about this long together."""
    chain_ms: float = Field(default=2.0, gt=0)
    """On a GPU a sample is a chain of calls that takes the reference about this long at most, ..."""
    chain_training: int = Field(default=16, ge=1)
    """... of no more calls than this at `training` precision: each needs inputs and answers of its own;"""
    chain_report: int = Field(default=24, ge=1)
    """no more than this at `report`."""
    sample_elements: int = Field(default=128, ge=16)
    """Secret output elements that stop the clock, over all outputs of a call."""
    full_check_share: float = Field(default=0.25, gt=0, le=1)
    """Share of the input sets, secret, whose whole outputs are compared."""
    error_factor: float = Field(default=32.0, gt=1)
    """c: a candidate's error may be this many times the reference's own; see docs/architecture.md, numerics. Outputs of
    half precision have another (`cudal1_env.judge.oracle.numerics.HALF`)."""
    error_floor_ulps: float = Field(default=8.0, gt=0)
    """Least tolerance, in units of the last place of the output's scale."""
    max_source_bytes: int = Field(default=1 << 20, gt=0)
    """Longest program."""
