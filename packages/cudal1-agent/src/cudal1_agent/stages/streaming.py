"""Stage 1 on a stream: tokens in batches of like length, made while the model trains, resumed at their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
"""Batches whose examples are sorted by length together: a block. The more, the less padding and the less chance."""

LONG = 256
"""Examples that are too long before the first block is full, after which a stream is given up."""

Row = dict[str, list[int]]
"""One example as TRL's collator takes it: `input_ids`, and `labels` with -100 where nothing is to be learnt."""


class StreamState(Place):
    """Where a stream is to be resumed: the beginning of a block, and what of it was used."""

    block: int = 0
    """Number of the block that begins at this place."""
    used: int = 0
    """Rows of the block that were trained on."""


@dataclass
class Batches:
    """The rows of a stream in batches of like length."""

    stream: Stream
    encode: Callable[[Pair], Row | None]
    """Makes the row of a pair, None where it is too long."""
    batch: int
    """Rows in a batch."""
    workers: int
    """Processes that render."""
    start: StreamState = StreamState()  # noqa: RUF009  # frozen
    """Where to begin."""
    learnt: Callable[[str], None] = lambda _: None
    """Receives the skeleton of each program that is to be learnt."""
    places: dict[int, Place] = field(default_factory=dict[int, Place])
    """Where each block begins that is known so far."""
    kept: int = 0
    """Examples that were not too long."""
    dropped: int = 0
    """Examples that were too long even without exemplars."""

    def state(self, rows: int) -> StreamState:
        """Return where to resume after so many rows of the whole stage."""
        block, used = divmod(rows, self.batch * BATCHES)
        place = self.places[block]
        return StreamState(task=place.task, pair=place.pair, block=block, used=used)

    def __call__(self) -> Iterator[Row]:
        """Yield the rows in the order in which they are trained on."""
        number, skip = self.start.block, self.start.used
        self.places[number] = Place(task=self.start.task, pair=self.start.pair)
        block: list[Row] = []
        for place, choices in streamed(self.stream, self.places[number], workers=self.workers):
            if len(block) == self.batch * BATCHES:
                self.places[number + 1] = place
                yield from self._ordered(block, number)[skip:]
                number, skip, block = number + 1, 0, []
            row = self._first(choices)
            if row is not None:
                self.learnt(choices[0].skeleton)
                block.append(row)

    def _first(self, choices: Choices) -> Row | None:
        row = next((row for pair in choices if (row := self.encode(pair)) is not None), None)
        self.kept, self.dropped = self.kept + (row is not None), self.dropped + (row is None)
        if self.dropped >= LONG and not self.kept:
            raise CorpusError(
                f"all of the first {self.dropped} examples of the stream are too long even without exemplars; raise "
                "max_length in [sft.trl] and prompt.max_tokens, and the context of the model"
            )
        return row

    def _ordered(self, block: list[Row], number: int) -> list[Row]:
        """Return the rows of a block: batches of like length, in an order drawn from the stream's seed."""
        ranked = sorted(block, key=lambda row: len(row["input_ids"]))
        parts = [ranked[start : start + self.batch] for start in range(0, len(ranked), self.batch)]
        order = np.random.default_rng([self.stream.seed, 9, number]).permutation(len(parts))
        return [row for index in order for row in parts[int(index)]]


def encoder(
    tokenizer: PreTrainedTokenizerBase, *, chat: Mapping[str, Any], max_prompt: int, max_length: int | None
) -> Callable[[Pair], Row | None]:
    """Return what makes a row of a pair: the tokens that TRL's SFTTrainer makes, with loss on the answer alone.

    Args:
        tokenizer: The model's tokenizer.
        chat: Further arguments of its chat template.
        max_prompt: Longest prompt in tokens.
        max_length: Longest example in tokens; None cuts nothing off.
    """

    def ids(text: str, *, special: bool) -> list[int]:
        return list(tokenizer(text, add_special_tokens=special)["input_ids"])

    def encode(pair: Pair) -> Row | None:
        if tokenizer.chat_template is None:
            given = ids(pair.prompt, special=True)
            whole = ids(pair.prompt + pair.answer + str(tokenizer.eos_token), special=True)
        else:
            talk = [*as_messages(pair.prompt), {"role": "assistant", "content": pair.answer}]
            text = tokenizer.apply_chat_template(talk, tokenize=False, **chat)
            assert isinstance(text, str)
            given, whole = ids(as_chat(tokenizer, pair.prompt, chat), special=False), ids(text, special=False)
        if len(given) > max_prompt or (max_length is not None and len(whole) > max_length):
            return None
        kept = common(given, whole)
        return {"input_ids": whole, "labels": [-100] * kept + whole[kept:]}

    return encode


def common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many tokens two texts begin with together.

    >>> common([1, 2, 3], [1, 2, 4, 5])
    2
    """
    return next((place for place, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first))
