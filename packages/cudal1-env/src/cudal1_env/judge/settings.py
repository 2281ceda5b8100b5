"""Settings of the judge. A default is a decision with a reason."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from cudal1_env.baselines import BaselineName


class JudgeSettings(BaseModel):
    """How candidates are judged on this machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where programs run; `auto` takes a GPU when the judge supports one here."""
    arithmetic: Literal["strict", "tf32"] = "strict"
    """`tf32` lets both arms round the factors of products to TF32, which widens the tolerance; GPUs only."""
    baselines: tuple[Literal["all"] | BaselineName, ...] = ()
    """Baselines to measure correct programs against. `all` leaves out `compile-max-autotune`, which takes minutes for a
    task. Each is measured once for each task, machine and version."""
    policy: Literal["strict", "kernelbench"] = "strict"
    """`kernelbench` adds a second verdict to each record, by KernelBench's rules: the constructor's weights,
    KernelBench's tolerance, no timing. Status, speedup and reward remain those of `strict`."""
    profile: Literal["report", "always", "never"] = "report"
    """When to profile a correct program in an untimed call; by default only at `report` precision, because profiling
    takes as long as another start of the program."""
    require_sandbox: tuple[str, ...] = ()
    """Sandbox layers without which the judge refuses to work. Other layers are used if the machine has them."""
    oracle_timeout_s: float = Field(default=300.0, gt=0)
    """Limit for each request to the oracle: import, call, or a set of inputs with float64 answers."""
    build_timeout_s: float = Field(default=180.0, gt=0)
    """Limit for importing a candidate, compilation included (a C++ extension takes 30 s on an idle core)."""
    warmup_timeout_s: float = Field(default=60.0, gt=0)
    """Limit for the constructor and all untimed calls together, including autotuning and graph capture."""
    baseline_warmup_timeout_s: float = Field(default=300.0, gt=0)
    """`warmup_timeout_s` for baselines: a network of a hundred layers compiles for minutes."""
    call_timeout_s: float = Field(default=5.0, gt=0)
    """Limit of a timed call, or four times the reference's latency if that is longer; at most about a thousand times
    that latency (the paper's rule)."""
    memory_bytes: int = Field(default=8 << 30, gt=0)
    """Memory that a worker may allocate."""
    scratch_bytes: int = Field(default=1 << 30, gt=0)
    """Size of a worker's private temporary folder."""
    max_processes: int = Field(default=256, gt=0)
    """Maximum number of processes and threads of one worker, compilers included."""
    build_store_bytes: int = Field(default=8 << 30, ge=0)
    """Disk space for compiled files, kept between runs in the user's cache folder; 0 keeps nothing. A CUDA extension
    takes about 7 MB."""
    pool_bytes: int = Field(default=2 << 30, gt=0)
    """Memory for input sets and answers of all tasks; those of the least recently used task are dropped first."""
    max_pools: int = Field(default=12, ge=1)
    """Maximum number of tasks whose oracle process and input sets are kept."""
    pool_candidates: int = Field(default=64, ge=1)
    """Candidates after which a task's secrets (seeds, weights, untimed inputs) are replaced."""
    pool_s: float = Field(default=600.0, gt=0)
    """Seconds after which a task's secrets are replaced."""
    lanes: int = Field(default=8, ge=1)
    """Maximum number of parallel verdicts at `correct` precision; at most the number of cores is used."""
    budget_training_s: float = Field(default=0.8, gt=0)
    """Seconds of measurement after which a `training` evaluation accepts the interval as it is."""
    budget_report_s: float = Field(default=20.0, gt=0)
    """Seconds of measurement over all trials of a `report` evaluation on a CPU."""
    budget_report_gpu_s: float = Field(default=7.0, gt=0)
    """Seconds of measurement over all trials of a `report` evaluation on a GPU, where other users wait."""
    chain_ms: float = Field(default=2.0, gt=0)
    """On a GPU, a sample is a chain of calls; the reference takes about this long for the longest chain."""
    full_check_share: float = Field(default=0.25, gt=0, le=1)
    """Share of the input sets, chosen secretly, whose whole outputs are compared."""
    error_factor: float = Field(default=32.0, gt=1)
    """c: maximum ratio of a candidate's error to the reference error; see docs/architecture.md, numerics. Half
    precision outputs have another factor (`cudal1_env.judge.oracle.numerics.HALF`)."""
    error_floor_ulps: float = Field(default=8.0, gt=0)
    """Minimum tolerance, in units in the last place of the output's scale."""
