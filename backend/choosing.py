"""What stands behind the choice of a model: folders, forecasts, downloads, the memory budget. One for each Pagoda."""

import asyncio
from pathlib import Path
from typing import Any

from backend.downloads import Downloads
from backend.errors import Conflict, Invalid
from backend.forecast import Forecasts
from backend.gateway import Gateway
from backend.hub import DownloadFailed
from backend.kept import Kept
from backend.local_models import LocalModel, local_models, models_in
from backend.memory_budget import LEAST, MemoryBudget
from backend.notices import Notice
from engine.client import EngineClient

KEPT_FOLDERS = "folders"


class Choosing:
    """`engine` is None where nothing runs here; then there is no memory to set, and nothing to download for.

    `model` and `memory_bytes` are what Pagoda was started with.
    """

    def __init__(
        self,
        gateway: Gateway,
        data_dir: Path,
        engine: EngineClient | None = None,
        model: str = "default",
        memory_bytes: int | None = None,
    ) -> None:
        self._gateway, self._data_dir, self._model = gateway, data_dir, model
        self._kept = Kept(data_dir / "settings.json")
        self._forecasts = Forecasts(data_dir)
        self._downloads = Downloads(self._kept, self._tell_downloads)
        self._tell_downloads(self._downloads.rows())
        self._memory = None
        if engine is not None:
            self._memory = MemoryBudget(engine, "engine", gateway.queue, self._kept, memory_bytes)

    async def close(self) -> None:
        """End what still goes on; downloads keep what has come."""
        self._forecasts.close()
        await self._downloads.close()
        if self._memory is not None:
            await self._memory.close()

    def local_models(self) -> list[LocalModel]:
        """All that lie on this computer. Looks on the disk."""
        return local_models(self._model, self._data_dir, folders=self.folders())

    async def forecast(self, name: str) -> dict[str, Any]:
        """`forecast`: what a model needs and what memory buys (backend/forecast.py); `measured`: how fast its newest
        replies were. Raises Invalid for a name that is not one of this computer's models."""
        if name not in {model.name for model in await asyncio.to_thread(self.local_models)}:
            raise Invalid(f"There is no model {name!r} on this computer.", "model")
        return {"forecast": await self._forecasts.of(name), "measured": self._gateway.measured_speeds(name)}

    # --- folders ---------------------------------------------------------------------------------

    def folders(self) -> list[str]:
        """Where models are looked for, besides the Hugging Face cache."""
        return [folder for folder in self._kept.get(KEPT_FOLDERS, []) if isinstance(folder, str)]

    async def add_folder(self, path: str) -> list[str]:
        """Look for models there from now on; returns those that were found. Raises Invalid when there are none."""
        folder = Path(path.strip()).expanduser()
        if not folder.is_absolute():
            raise Invalid("Write the whole path of the folder, from / or ~ on.", "path")
        if not await asyncio.to_thread(folder.is_dir):
            raise Invalid(f"There is no folder {folder} on the computer that Pagoda runs on.", "path")
        folder = await asyncio.to_thread(folder.resolve)
        if not (found := await asyncio.to_thread(models_in, folder)):
            raise Invalid(
                f"No model was found in {folder}. A model is a folder with a config.json and *.safetensors files; "
                "three levels below are looked at, too.",
                "path",
            )
        if str(folder) not in self.folders():
            self._kept.set(KEPT_FOLDERS, [*self.folders(), str(folder)])
        return [str(model) for model in found]

    def drop_folder(self, path: str) -> None:
        """Look there no more. Nothing in it is touched."""
        self._kept.set(KEPT_FOLDERS, [folder for folder in self.folders() if folder != path] or None)

    # --- downloads -------------------------------------------------------------------------------

    def _tell_downloads(self, rows: list[dict[str, Any]]) -> None:
        self._gateway.publish(Notice("downloads", None, {"rows": rows}))

    def downloads(self) -> list[dict[str, Any]]:
        return self._downloads.rows()

    def download(self, text: str) -> str:
        """Begin or go on; returns the model's name. Raises Invalid for what is no name of a model."""
        if self._memory is None:
            raise Conflict("No model runs on this computer: Pagoda was started for one of another server.")
        try:
            return self._downloads.start(text)
        except DownloadFailed as error:
            raise Invalid(str(error), "name") from error

    async def pause_download(self, name: str) -> None:
        await self._downloads.pause(name)

    async def cancel_download(self, name: str) -> None:
        await self._downloads.cancel(name)

    # --- memory ----------------------------------------------------------------------------------

    def memory(self) -> dict[str, Any]:
        """The memory budget, or `{}` where nothing runs here."""
        return self._memory.to_dict() if self._memory is not None else {}

    def set_memory(self, nbytes: int | None) -> dict[str, Any]:
        """Another budget, from the next reply on. Raises Invalid."""
        if self._memory is None:
            raise Conflict("No model runs on this computer, so there is no memory to set.")
        if nbytes is not None and nbytes < LEAST:
            raise Invalid(f"{nbytes / 1e6:.0f} MB are too little for any model.", "memory_bytes")
        self._memory.set(nbytes)
        return self.memory()
