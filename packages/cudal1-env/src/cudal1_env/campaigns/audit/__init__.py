"""The audit of tasks: incorrect answers go through a task's own checker, and those that it accepts are listed."""

from cudal1_env.campaigns.audit.run import audit_file, audit_task, audit_tasks

__all__ = ["audit_file", "audit_task", "audit_tasks"]
