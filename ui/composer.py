"""Where a message is written: the Python half of static/composer.js. The draft lives in the browser alone."""

from nicegui.element import Element

from ui.assets import static_folder


class Composer(Element, component=static_folder() / "composer.js"):
    def __init__(self, limit: int) -> None:
        """`limit`: the most characters that one message may have."""
        super().__init__()
        self._props["limit"] = limit
