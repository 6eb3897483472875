"""DiffusionGemma on Apple silicon and NVIDIA cards: one core, one trajectory.

model = dgemma.load()
print(model.generate("3 + 4"))
"""

TYPE_CHECKING = False  # typing's own takes longer to import than the rest of what a signal has to wait for.
if TYPE_CHECKING:
    from dgemma.api import Model, load
    from dgemma.chat import Chat, Turn
    from dgemma.errors import DgemmaError
    from dgemma.events import Block, Draft, Finish
    from dgemma.generation import Generation, Stream
    from dgemma.settings import Settings

__version__ = "0.1.0"
__all__ = [
    "Block",
    "Chat",
    "DgemmaError",
    "Draft",
    "Finish",
    "Generation",
    "Model",
    "Settings",
    "Stream",
    "Turn",
    "load",
]
_HOMES = {
    "Block": "events",
    "Chat": "chat",
    "DgemmaError": "errors",
    "Draft": "events",
    "Finish": "events",
    "Generation": "generation",
    "Model": "api",
    "Settings": "settings",
    "Stream": "generation",
    "Turn": "chat",
    "load": "api",
}


def __getattr__(name: str) -> object:
    """Import the public names when they are first used, so that `import dgemma` is cheap."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'dgemma' has no attribute {name!r}")
    return getattr(import_module(f"dgemma.{_HOMES[name]}"), name)
