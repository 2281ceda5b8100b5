"""Stage 1: supervised fine-tuning on correct programs; stage 2 trains with the same `supervise`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from cudal1_data import Device
from cudal1_env.hardware import available_needs

from cudal1_agent.data.examples import Pair, Program, by_length, example, pairs_from, training_pairs
from cudal1_agent.data.prompts import Style
from cudal1_agent.data.selection import CorpusSelection, listed
from cudal1_agent.data.stream import Stream, free_cores, make_stream
from cudal1_agent.data.tasks import TaskSets
from cudal1_agent.policies.transformers import as_messages, load_model, load_tokenizer, tokens_of
from cudal1_agent.run.checkpoints import Checkpoint
from cudal1_agent.run.learnt import Learnt
from cudal1_agent.run.metrics import Record
from cudal1_agent.run.session import Session
from cudal1_agent.settings import Settings
from cudal1_agent.stages.streaming import Batches, Encoder, StreamState
from cudal1_agent.stages.trl import Keeper, arguments, finish, lora_of, unchanged_module


def run_sft(session: Session, checkpoint: Checkpoint | None, *, model: str | Path, folder: Path) -> None:
    """Train a model on the variants, a corpus or a stream, and save it to `folder / "model"`.

    Args:
        session: The run.
        checkpoint: Where to resume an interrupted stage.
        model: The model to begin with.
        folder: Folder of the stage.

    Raises:
        CorpusError: There is nothing to learn from.
        ConfigError: TRL rejects the settings.
    """
    settings = session.settings
    if settings.sft.stream is not None:
        supervise_stream(session, settings.sft.stream, model, folder, checkpoint)
        return
    if session.selection is None:
        pairs = training_pairs(
            session.tasks.train,
            session.prompts(model),
            device=session.device,
            have=available_needs(),
            contexts=settings.sft.contexts,
            count=pairs_of(settings.sft.trl),
            seed=settings.seed,
        )
    else:
        # With a checkpoint, the metrics have the line on the corpus already.
        pairs = corpus_pairs(session, session.selection, model, recorded=checkpoint is not None)
    supervise(session, "sft", model, pairs, settings.sft.trl, folder, checkpoint)


def corpus_pairs(session: Session, selection: CorpusSelection, model: str | Path, *, recorded: bool) -> list[Pair]:
    """Return as many pairs from a corpus as stage 1 trains on, none longer than the length that TRL truncates to.

    Args:
        session: The run.
        selection: The pairs that may be learnt.
        model: The model to train, for its tokenizer.
        recorded: Whether the metrics already have the `corpus` line.

    Raises:
        CorpusError: No program is short enough.
    """
    settings, tokenizer, prompts = session.settings, load_tokenizer(model), session.prompts(model)
    longest = settings.sft.trl.get("max_length", 1024)  # TRL's default; None is no limit

    def short(prompt: str, answer: str) -> bool:
        return longest is None or tokens_of(tokenizer, prompt, answer, settings.policy.chat) <= longest

    def short_alone(program: Program) -> bool:
        alone = example(program, [], prompts)
        return short(alone.prompt, alone.answer)

    programs, left_out = selection.choose(settings.sft.max_per_task, short_alone)
    count = pairs_of(settings.sft.trl)
    tasks = len({(program.task.id, program.task.source) for program in programs})
    session.progress.line(
        f"sft: {count} examples from {len(programs)} pairs of {tasks} tasks in {selection.path}; "
        f"pairs left out: {listed(left_out)}"
    )
    if not recorded:
        counts = {"examples": count, "pairs": len(programs), "tasks": tasks, "left_out": left_out}
        session.folder.metrics.append({"event": "corpus", "stage": "sft", "sha256": selection.sha256, **counts})
    return pairs_from(
        programs,
        # No limit: `fits` drops exemplars before the answer is written, so an answer names only what its prompt shows.
        replace(prompts, limit=sys.maxsize),
        contexts=settings.sft.contexts,
        count=count,
        seed=settings.seed,
        fits=lambda prompt, answer: prompts.count(prompt) <= prompts.limit and short(prompt, answer),
    )


def pairs_of(table: Mapping[str, Any]) -> int:
    """Return how many pairs a trl table trains on, over all its steps."""
    return int(table["max_steps"]) * batch_of(table) * int(table.get("gradient_accumulation_steps", 1))


def batch_of(table: Mapping[str, Any]) -> int:
    """Return the batch size of a trl table, in pairs."""
    return int(table.get("per_device_train_batch_size", 8))


def supervise(
    session: Session,
    stage: str,
    model: str | Path,
    pairs: Sequence[Pair],
    table: Mapping[str, Any],
    folder: Path,
    checkpoint: Checkpoint | None,
) -> None:
    """Train a model on pairs with TRL's SFTTrainer, each pair once, and save it to `folder / "model"`.

    The pairs of all steps are fixed beforehand and read in order, so a checkpoint needs only its step to resume with
    the same data.

    Args:
        session: The run.
        stage: Name of the stage in the metrics.
        model: The model to begin with.
        pairs: As many as `pairs_of(table)`.
        table: Settings of TRL's SFTConfig.
        folder: Folder of the stage.
        checkpoint: Where to resume.

    Raises:
        ConfigError: TRL rejects the settings.
    """
    from datasets import Dataset

    tokenizer = load_tokenizer(model)
    chat = tokenizer.chat_template is not None
    Learnt(session.folder.path).add(pair.skeleton for pair in pairs)

    @cache
    def length(pair: Pair) -> int:
        return tokens_of(tokenizer, pair.prompt, pair.answer, session.settings.policy.chat)

    ordered = by_length(pairs, length, batch=batch_of(table), seed=session.settings.seed)
    more = {"chat_template_kwargs": session.settings.policy.chat} if session.settings.policy.chat else {}
    rows = [
        {"prompt": as_messages(pair.prompt), "completion": [{"role": "assistant", "content": pair.answer}], **more}
        if chat
        else {"prompt": pair.prompt, "completion": pair.answer}
        for pair in ordered
    ]
    _train(session, stage, model, Dataset.from_list(rows), {"completion_only_loss": True, **table}, folder, checkpoint)


def supervise_stream(
    session: Session, texts: str | Sequence[str], model: str | Path, folder: Path, checkpoint: Checkpoint | None
) -> None:
    """Train a model on a stream of generated pairs, and save it to `folder / "model"`.

    Args:
        session: The run.
        texts: The stream, such as `generated?seed=0`, or several.
        model: The model to begin with.
        folder: Folder of the stage.
        checkpoint: Where to resume; it holds the place in the stream.

    Raises:
        CorpusError: The stream yields nothing.
        ConfigError: TRL rejects the settings.
    """
    from datasets import Features, IterableDataset, List, Value

    settings = session.settings
    table = settings.sft.trl
    tokenizer, prompts = load_tokenizer(model), session.prompts(model)
    batches = Batches(
        stream_of(settings, session.tasks, session.device, prompts.style, texts),
        Encoder(
            tokenizer,
            chat=settings.policy.chat,
            max_prompt=prompts.limit,
            max_length=table.get("max_length", 1024),  # TRL's default; None is no limit
        ),
        batch_of(table),
        free_cores() if settings.sft.workers is None else settings.sft.workers,
    )
    learnt = Learnt(session.folder.path)
    batches.learnt = lambda skeleton: learnt.add([skeleton])
    if checkpoint is not None:
        batches.start = StreamState.model_validate(checkpoint.mark.extra["stream"])
    rows_each = batch_of(table) * int(table.get("gradient_accumulation_steps", 1))
    steps = 0

    def at_step(done: int) -> None:
        nonlocal steps
        steps = done

    def extra() -> Record:
        return {"stream": batches.state(steps * rows_each).model_dump()}

    features = Features({"input_ids": List(Value("int64")), "labels": List(Value("int64"))})
    values = {**table, "dataset_kwargs": {"skip_prepare_dataset": True}, "ignore_data_skip": True}
    _train(
        session,
        "sft",
        model,
        IterableDataset.from_generator(batches, features=features),
        values,
        folder,
        checkpoint,
        extra=extra,
        at_step=at_step,
    )
    session.progress.line(f"sft: {batches.dropped} examples were too long and left out")


def stream_of(settings: Settings, tasks: TaskSets, device: Device, style: Style, texts: str | Sequence[str]) -> Stream:
    """Return the stream that stage 1 of a run learns from.

    Raises:
        ConfigError: A text does not name a stream.
        DataError: A family or an option is unknown.
    """
    return make_stream(
        texts,
        device=device,
        style=style,
        contexts=settings.sft.contexts,
        per_task=settings.sft.max_per_task,
        have=available_needs(),
        held_out=tasks.held_out,
        sizes=tasks.held_out_sizes,
        taught=settings.sft.taught,
        respelled=settings.sft.respelled,
    )


def _train(
    session: Session,
    stage: str,
    model: str | Path,
    dataset: Any,
    table: Mapping[str, Any],
    folder: Path,
    checkpoint: Checkpoint | None,
    *,
    extra: Callable[[], Record] = dict,
    at_step: Callable[[int], None] = lambda _: None,
) -> None:
    from trl.trainer.sft_config import SFTConfig

    from cudal1_agent.stages.supervised import SupervisedTrainer

    tokenizer = load_tokenizer(model)
    config = arguments(SFTConfig, table, folder=folder / "trainer", seed=session.settings.seed, use_cpu=session.use_cpu)
    config.train_sampling_strategy = "sequential"
    loaded = load_model(model, tokenizer, use_cpu=session.use_cpu)
    with unchanged_module(loaded), session.progress.bar(stage) as tick:

        def ticked(done: int, total: int) -> None:
            at_step(done)
            tick(done, total)

        trainer = SupervisedTrainer(
            model=loaded,
            args=config,
            train_dataset=dataset,
            processing_class=tokenizer,
            peft_config=lora_of(session.settings.peft),
            callbacks=[Keeper(session, stage, ticked, extra)],
        )
        finish(session, trainer, checkpoint, folder / "model", stage)
