"""Which eviction policy reads the fewest experts? `python -m bench.residency` replays router traces offline."""
