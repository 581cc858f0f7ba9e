"""What one reply used of the experts that were found in memory or read, where several replies used them together."""

from dataclasses import replace
from time import perf_counter

from engine.fetch import Counters


class Share:
    """One reply's part of a model's counters: of each pass that several take part in, an equal part."""

    def __init__(self, counters: Counters):
        self._counters = counters
        self._used = Counters()
        self._since, self._among = replace(counters), 0
        self._began = self._passes_s = 0.0

    @property
    def passes_s(self) -> float:
        """Seconds that its passes took, up to now."""
        return self._passes_s + (perf_counter() - self._began if self._among else 0.0)

    def begin(self, among: int) -> None:
        """A pass begins, of so many replies."""
        self._since, self._among = replace(self._counters), among
        self._began = perf_counter()

    def end(self) -> None:
        """The pass is over."""
        self._used, self._passes_s = self.now(), self.passes_s
        self._among = 0

    def now(self) -> Counters:
        """This reply's part until now, within a pass too."""
        if not self._among:
            return self._used
        now, since, used, among = self._counters, self._since, self._used, self._among
        return Counters(
            expert_hits=used.expert_hits + (now.expert_hits - since.expert_hits) // among,
            expert_reads=used.expert_reads + (now.expert_reads - since.expert_reads) // among,
            bytes_read=used.bytes_read + (now.bytes_read - since.bytes_read) // among,
            disk_s=used.disk_s + (now.disk_s - since.disk_s),
            router_s=used.router_s + (now.router_s - since.router_s),
        )
