"""How much memory there is and how much the engine may use."""

import os
import sys
from pathlib import Path

GIB = 1 << 30


def physical_bytes() -> int:
    """The machine's memory, or less where a Linux control group allows less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *_cgroup_limits()])


def auto_budget() -> int:
    """`--memory auto`: what is physically there, less a reserve for the system, the page and a browser.

    The reserve is a fifth, at least 2 GiB, but never more than half.
    """
    total = physical_bytes()
    return total - min(max(total // 5, 2 * GIB), total // 2)


def rss_bytes() -> int:
    """The resident set of this process now."""
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return peak_rss_bytes()


def peak_rss_bytes() -> int:
    """The largest resident set this process had."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # kilobytes on Linux, bytes on macOS


def _cgroup_limits() -> list[int]:
    """Limits of the control groups this process is in (version 2, then 1)."""
    limits = []
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in groups:
        _, controllers, path = line.split(":", 2)
        base = Path("/sys/fs/cgroup") if controllers == "" else Path("/sys/fs/cgroup/memory")
        name = "memory.max" if controllers == "" else "memory.limit_in_bytes"
        if controllers not in ("", "memory"):
            continue
        folder = base / path.lstrip("/")
        for place in (folder, *folder.parents):
            try:
                text = (place / name).read_text().strip()
            except OSError:
                text = "max"
            if text != "max":
                limits.append(int(text))
            if place == base:
                break
    return limits
