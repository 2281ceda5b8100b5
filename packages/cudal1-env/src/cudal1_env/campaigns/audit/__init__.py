"""The audit of tasks: put incorrect answers through a task's own checker and list those that it accepts."""

from cudal1_env.campaigns.audit.run import audit_file, audit_task, audit_tasks

__all__ = ["audit_file", "audit_task", "audit_tasks"]
