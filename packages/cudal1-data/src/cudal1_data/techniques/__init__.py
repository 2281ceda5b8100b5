"""Techniques of programs: tags found in their text, and the table of mean speedups by tag."""

from cudal1_data.techniques.classify import Tags, classify
from cudal1_data.techniques.patterns import BACKEND_NAMES, PATTERNS, TECHNIQUES, Backend, Pattern
from cudal1_data.techniques.table import TechniqueRow, top_techniques

__all__ = [
    "BACKEND_NAMES",
    "PATTERNS",
    "TECHNIQUES",
    "Backend",
    "Pattern",
    "Tags",
    "TechniqueRow",
    "classify",
    "top_techniques",
]
