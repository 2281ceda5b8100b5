"""The audit of tasks: wrong answers go through a task's own checker, and what it calls right is listed."""

from cudal1_env.campaigns.audit.run import audit_file, audit_task, audit_tasks

__all__ = ["audit_file", "audit_task", "audit_tasks"]
