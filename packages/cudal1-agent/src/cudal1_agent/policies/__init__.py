"""Policies, which generate answers to prompts; one file for each way of running a language model."""

from cudal1_agent.policies.base import Policy

__all__ = ["Policy"]
