"""The engine's errors. Each message is for a person: what happened, why, and what to do next.

EngineError
├── CheckpointError   a model folder that cannot be used: names the file and the tensor
├── BudgetError       a memory budget that cannot work: says the least that does
├── DiskError         reading expert bytes failed: names file, offset and expert
│   └── ModelChanged    a file is not the one any more that was loaded
├── PromptError       a prompt the model cannot take
│   ├── PromptTooLong   more tokens than the model can hold
│   └── Unsupported     a wish that this model cannot fulfil: `param` names it
├── Aborted           the person stopped the run; raised inside a layer
├── ModelNotLoaded    a request for a model whose loading failed
└── EngineDied        the engine's process ended in the middle of its work
"""


class EngineError(Exception):
    """Base of everything the engine raises on purpose."""


class CheckpointError(EngineError):
    """A model folder that cannot be used."""


class BudgetError(EngineError):
    """A memory budget that cannot work."""


class DiskError(EngineError):
    """Reading expert bytes from disk failed."""


class ModelChanged(DiskError):
    """A file of the model is not the one any more that was loaded."""


class PromptError(EngineError):
    """A prompt the model cannot take."""


class PromptTooLong(PromptError):
    """A prompt with more tokens than the model can hold."""


class Unsupported(PromptError):
    """A wish that this model cannot fulfil; `param` names the field."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class Aborted(EngineError):
    """The run was stopped by the person."""


class ModelNotLoaded(EngineError):
    """The model could not be loaded, so nothing can run on it."""


class EngineDied(EngineError):
    """The engine's process ended in the middle of its work."""
