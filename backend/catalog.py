"""All models by name: those that run here, and NAME/model of each upstream."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from backend.sources import Source


class Shelf(Protocol):
    """Models that stand elsewhere, all behind one name."""

    name: str

    def models(self) -> list[str]:
        """The names it is known to serve, without its own in front; empty while nobody knows."""
        ...

    def source(self, model: str) -> Source:
        """The source for that model, whether or not it is among `models`: it may be served tomorrow."""
        ...

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when `models` changed. Returns what ends that."""
        ...


class Catalog(Mapping[str, Source]):
    """Iterating gives the names to choose from, the default first. Looking up finds more: every NAME/model of an
    upstream that there is, because its list may be missing while it is away."""

    def __init__(self, sources: Sequence[Source], upstreams: Sequence[Shelf] = ()) -> None:
        self._sources = {source.name: source for source in sources}
        self._upstreams = {upstream.name: upstream for upstream in upstreams}

    def add(self, source: Source) -> None:
        """One more that runs here, unless its name is known."""
        self._sources.setdefault(source.name, source)

    def is_here(self, name: str) -> bool:
        """Whether it runs here, not behind an upstream."""
        shelf, _, model = name.partition("/")
        return name in self._sources and not (model and shelf in self._upstreams)

    def __getitem__(self, name: str) -> Source:
        if name in self._sources:
            return self._sources[name]
        shelf, _, model = name.partition("/")
        if not model or shelf not in self._upstreams:
            raise KeyError(name)
        return self._upstreams[shelf].source(model)

    def __iter__(self) -> Iterator[str]:
        yield from self._sources
        for upstream in self._upstreams.values():
            names = (f"{upstream.name}/{model}" for model in upstream.models())
            yield from (name for name in names if name not in self._sources)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def watch(self, callback: Callable[[], None]) -> list[Callable[[], None]]:
        """Call back when a source or the list changed. Returns what ends that."""
        return [one.watch(callback) for one in (*self._sources.values(), *self._upstreams.values())]
