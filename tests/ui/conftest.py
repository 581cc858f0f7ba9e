"""The page's tests sit on the gateway's own scripted house."""

from tests.backend.conftest import house

__all__ = ["house"]
