"""Variants of tasks with their verdicts: the training corpus of stage 1."""

from cudal1_data.corpus.model import Figures, Label, Pair, Speedup
from cudal1_data.corpus.store import BUNDLED, Corpus, corpus_files, load_corpus

__all__ = ["BUNDLED", "Corpus", "Figures", "Label", "Pair", "Speedup", "corpus_files", "load_corpus"]
