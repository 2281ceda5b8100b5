"""Variants of tasks with what a judge found out about them: the corpus that stage 1 learns from."""

from cudal1_data.corpus.model import Figures, Label, Pair, Speedup
from cudal1_data.corpus.store import BUNDLED, Corpus, corpus_files, load_corpus

__all__ = ["BUNDLED", "Corpus", "Figures", "Label", "Pair", "Speedup", "corpus_files", "load_corpus"]
