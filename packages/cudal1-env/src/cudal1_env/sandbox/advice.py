"""How to enable a missing sandbox layer: flags of Docker and rootless Podman, settings of the host."""

from __future__ import annotations

_NAMESPACES = (
    "Docker: --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt "
    "systempaths=unconfined, and --cap-add SYS_ADMIN where the service runs as root; rootless Podman: --security-opt "
    "seccomp=unconfined --security-opt unmask=ALL (with SELinux also label=disable); host: sysctl "
    "user.max_user_namespaces above 0, and on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0"
)
_FILTER = "Docker and Podman: --security-opt seccomp=unconfined; host: a kernel with CONFIG_SECCOMP_FILTER"

ADVICE: dict[str, str] = {
    "user-namespace": _NAMESPACES,
    "pid-namespace": _NAMESPACES,
    "network-namespace": _NAMESPACES,
    "ipc-namespace": _NAMESPACES,
    "uts-namespace": _NAMESPACES,
    "mount-namespace": _NAMESPACES,
    "unprivileged-uid": (
        "Docker and Podman: --cap-add SETUID --cap-add SETGID, or --user with an ordinary user; Python must lie where "
        "every user may read it"
    ),
    "rlimits": "Docker and Podman: --ulimit with hard limits at least as high as the judge's; host: ulimit -H",
    "no-new-privs": "host: Linux 3.5 or newer",
    "landlock": (
        "host: Linux 5.13 or newer with landlock in the kernel's list of security modules "
        "(/sys/kernel/security/lsm; boot with lsm=landlock,...); "
        "Docker and Podman with an old profile: --security-opt seccomp=unconfined"
    ),
    "seccomp": _FILTER,
    "fork-gate": f"{_FILTER} and seccomp notification (Linux 5.5 or newer)",
}
"""Advice by layer. These flags let the judge make the worker's sandbox and do not weaken it. They do weaken the
container's isolation from the host, so run nothing else in the service's container."""


def advice(missing: list[str]) -> list[str]:
    """Return a line for each piece of advice on missing layers, with the names of its layers.

    >>> advice([])
    []
    >>> advice(["seccomp"])[0][:40]
    'seccomp: Docker and Podman: --security-o'
    """
    by_text: dict[str, list[str]] = {}
    for name in missing:
        by_text.setdefault(ADVICE[name], []).append(name)
    return [f"{', '.join(names)}: {text}" for text, names in by_text.items()]
