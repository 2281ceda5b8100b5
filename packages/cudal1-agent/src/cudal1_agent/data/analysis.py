"""The analysis section of a training answer, computed from the programs in its prompt."""

from __future__ import annotations

from collections.abc import Sequence

from cudal1_env.exemplars import Exemplar

NOTHING = "There is nothing to compare."
"""Analysis of a prompt without previous programs."""


def analysis(shown: Sequence[Exemplar], tags: Sequence[Sequence[str]], wanted: Sequence[str] = ()) -> str:
    """Return which shown program is fastest, which techniques only it has, and which wanted ones are unused.

    Args:
        shown: The programs that the prompt shows, in its order.
        tags: The techniques of each.
        wanted: Techniques of the answer's program; those that no shown program has are named as unused.

    >>> analysis([Exemplar("", 1.0), Exemplar("", 2.5)], [[], ["fusion"]])
    'code2 is fastest (2.50). Only it has fusion.'
    >>> analysis([Exemplar("", 2.5)], [[]], ["fusion"])
    'code1 is fastest (2.50). Nobody used fusion.'
    """
    if not shown:
        return NOTHING
    best = max(range(len(shown)), key=lambda index: shown[index].speedup)
    sentences = [f"code{best + 1} is fastest ({shown[best].speedup:.2f})."]
    slower = [index for index in range(len(shown)) if shown[index].speedup < shown[best].speedup]
    if slower:
        only = [tag for tag in tags[best] if all(tag not in tags[index] for index in slower)]
        sentences.append(f"Only it has {', '.join(only)}." if only else "No technique tells it from the slower ones.")
    unused = [tag for tag in wanted if all(tag not in one for one in tags)]
    if unused:
        sentences.append(f"Nobody used {', '.join(unused)}.")
    return " ".join(sentences)
