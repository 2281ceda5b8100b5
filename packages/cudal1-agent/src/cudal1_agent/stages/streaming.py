"""Stage 1 on a stream: tokens in batches of similar length, made while the model trains, resumed at their place."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from cudal1_agent.data.examples import Pair
from cudal1_agent.data.stream import Choices, Place, Stream, streamed
from cudal1_agent.errors import CorpusError
from cudal1_agent.policies.transformers import as_chat, as_messages

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BATCHES = 32
"""Batches in a block, whose examples are sorted by length together. More means less padding and less randomness."""

LONG = 256
"""A stream is rejected if its first examples, this many, are all too long."""

Row = dict[str, list[int]]
"""One example for TRL's collator: `input_ids`, and `labels` with -100 for tokens without loss."""


@dataclass(frozen=True)
class Encoded:
    """One tokenised example of a stream."""

    row: Row | None
    """None if it is too long even without exemplars."""
    skeleton: str
    """The skeleton of its program."""


class StreamState(Place):
    """Where to resume a stream: the beginning of a block, and how much of it was used."""

    block: int = 0
    """Number of the block that begins at this place."""
    used: int = 0
    """Rows of the block that were trained on."""


@dataclass
class Batches:
    """The rows of a stream in batches of similar length."""

    stream: Stream
    encode: Callable[[Pair], Row | None]
    """Makes the row of a pair, None if it is too long."""
    batch: int
    """Rows in a batch."""
    workers: int
    """Processes that render."""
    start: StreamState = StreamState()  # noqa: RUF009  # frozen
    """Where to begin."""
    learnt: Callable[[str], None] = lambda _: None
    """Receives the skeleton of each program that is to be learnt."""
    places: dict[int, Place] = field(default_factory=dict[int, Place])
    """Where each block so far begins."""
    kept: int = 0
    """Examples that were not too long."""
    dropped: int = 0
    """Examples that were too long even without exemplars."""

    def state(self, rows: int) -> StreamState:
        """Return where to resume after a number of rows of the whole stage."""
        block, used = divmod(rows, self.batch * BATCHES)
        place = self.places[block]
        return StreamState(task=place.task, pair=place.pair, block=block, used=used)

    def __call__(self) -> Generator[Row]:
        """Yield the rows in the order of training."""
        number, skip = self.start.block, self.start.used
        self.places[number] = Place(task=self.start.task, pair=self.start.pair)
        block: list[Row] = []
        encoding = _Encoding(self.encode)
        rows = self.batch * BATCHES
        # Two blocks: the next one is ready when training asks for its first batch.
        found_in_order = streamed(self.stream, self.places[number], encoding, workers=self.workers, ahead=2 * rows)
        for place, found in found_in_order:
            if len(block) == rows:
                self.places[number + 1] = place
                yield from self._ordered(block, number)[skip:]
                number, skip, block = number + 1, 0, []
            self._count(found)
            if found.row is not None:
                self.learnt(found.skeleton)
                block.append(found.row)

    def _count(self, found: Encoded) -> None:
        self.kept, self.dropped = self.kept + (found.row is not None), self.dropped + (found.row is None)
        if self.dropped >= LONG and not self.kept:
            raise CorpusError(
                f"all of the first {self.dropped} examples of the stream are too long even without exemplars; raise "
                "max_length in [sft.trl] and prompt.max_tokens, and the context of the model"
            )

    def _ordered(self, block: list[Row], number: int) -> list[Row]:
        """Return the rows of a block: batches of similar length, in an order drawn from the stream's seed."""
        ranked = sorted(block, key=lambda row: len(row["input_ids"]))
        parts = [ranked[start : start + self.batch] for start in range(0, len(ranked), self.batch)]
        order = np.random.default_rng([self.stream.seed, 9, number]).permutation(len(parts))
        return [row for index in order for row in parts[int(index)]]


@dataclass(frozen=True)
class Encoder:
    """Converter from a pair to a row: the tokens of TRL's SFTTrainer, with loss only on the answer."""

    tokenizer: PreTrainedTokenizerBase
    """The model's tokenizer."""
    chat: Mapping[str, Any]
    """Further arguments of its chat template."""
    max_prompt: int
    """Longest prompt in tokens."""
    max_length: int | None
    """Longest example in tokens; None is no limit."""

    def __call__(self, pair: Pair) -> Row | None:
        """Return the row, None if prompt or example is too long."""
        tokenizer = self.tokenizer
        if tokenizer.chat_template is None:
            given = self._ids(pair.prompt, special=True)
            whole = self._ids(pair.prompt + pair.answer + str(tokenizer.eos_token), special=True)
        else:
            talk = [*as_messages(pair.prompt), {"role": "assistant", "content": pair.answer}]
            text = tokenizer.apply_chat_template(talk, tokenize=False, **self.chat)
            assert isinstance(text, str)
            given = self._ids(as_chat(tokenizer, pair.prompt, self.chat), special=False)
            whole = self._ids(text, special=False)
        if len(given) > self.max_prompt or (self.max_length is not None and len(whole) > self.max_length):
            return None
        kept = common(given, whole)
        return {"input_ids": whole, "labels": [-100] * kept + whole[kept:]}

    def _ids(self, text: str, *, special: bool) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=special)["input_ids"])


@dataclass(frozen=True)
class _Encoding:
    """Encoder of an example's first choice that is short enough, in the process that rendered it."""

    encode: Callable[[Pair], Row | None]

    def __call__(self, choices: Choices) -> Encoded:
        row = next((row for pair in choices if (row := self.encode(pair)) is not None), None)
        return Encoded(row, choices[0].skeleton)


def common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix of two texts, in tokens.

    >>> common([1, 2, 3], [1, 2, 4, 5])
    2
    """
    return next((place for place, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first))
