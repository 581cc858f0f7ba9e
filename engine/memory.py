"""How much memory there is and how much the engine may use."""

import ctypes
import os
import sys
from pathlib import Path

GIB = 1 << 30


def physical_bytes() -> int:
    """The machine's memory, or less where a Linux control group allows less."""
    return min([_installed_bytes(), *(limit for limit, _ in _cgroup_memory())])


def auto_budget() -> int:
    """`--memory auto`: what is there, less a reserve for the system, the page and a browser.

    The reserve is a fifth, at least 2 GiB, but never more than half. In a control group that allows less there is
    only the page's own process beside the engine: an eighth is left for it, at least 256 MiB, but never more than half.
    """
    total, allowed = _installed_bytes(), physical_bytes()
    budget = total - min(max(total // 5, 2 * GIB), total // 2)
    if allowed < total:
        budget = min(budget, allowed - min(max(allowed // 8, GIB // 4), allowed // 2))
    return budget


def _installed_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def rss_bytes() -> int:
    """The resident set of this process now."""
    if sys.platform == "linux":
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return _footprint() or peak_rss_bytes()


def _footprint() -> int:
    """macOS: ri_phys_footprint of struct rusage_info_v0, what Activity Monitor shows; 0 where there is none."""
    usage = (ctypes.c_uint64 * 12)()  # 16 bytes of id, then numbers: the footprint is the eighth
    call = getattr(ctypes.CDLL(None), "proc_pid_rusage", None)
    return usage[9] if call and call(os.getpid(), 0, usage) == 0 else 0


def peak_rss_bytes() -> int:
    """The largest resident set this process had."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # kilobytes on Linux, bytes on macOS


def unused_bytes() -> int:
    """Memory that holds nothing at all now, not even something cached; 0 where the system doesn't tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    free = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemFree:")), 0)
    return max(min([free, *(limit - used for limit, used in _cgroup_memory())]), 0)


def _cgroup_memory() -> list[tuple[int, int]]:
    """(limit, used) of the control groups with a limit that this process is in (version 2, then 1)."""
    found = []
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        base = Path("/sys/fs/cgroup") if controllers == "" else Path("/sys/fs/cgroup/memory")
        names = ("memory.max", "memory.current")
        if controllers:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        folder = base / path.lstrip("/")
        for place in (folder, *folder.parents):
            try:
                limit, used = ((place / name).read_text().strip() for name in names)
            except OSError:
                limit, used = "max", ""
            if limit != "max":
                found.append((int(limit), int(used)))
            if place == base:
                break
    return found
