"""First code of process 1: import modules from one file; searching for each would cost 0.7 ms."""

import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import ExtensionFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import CodeType, ModuleType


class Bundled:
    """Importer (PEP 451) of compiled modules and of extension modules with known files."""

    def __init__(self, modules: "Mapping[str, CodeType]", extensions: "Mapping[str, str]") -> None:
        self.modules, self.extensions = modules, extensions

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name in self.modules:
            return ModuleSpec(name, self, is_package=name == "in_sandbox")  # pyright: ignore[reportArgumentType]
        if name in self.extensions:
            file = self.extensions[name]
            return ModuleSpec(name, ExtensionFileLoader(name, file), origin=file)
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: "ModuleType") -> None:
        exec(self.modules[module.__name__], module.__dict__)  # noqa: S102


def main(
    modules: "Mapping[str, CodeType]", extensions: "Mapping[str, str]", programs: "tuple[bytes, bytes]"
) -> None:
    """Become process 1, or with the arguments `forward PORT PATH` start a relay from an ordinary command."""
    sys.meta_path.insert(0, Bundled(modules, extensions))
    if sys.argv[1] == "forward":
        from in_sandbox import relay

        relay.start(relay.listen(int(sys.argv[2])), sys.argv[3])
    else:
        from in_sandbox import init

        init.main(programs)
