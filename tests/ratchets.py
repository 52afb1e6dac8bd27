"""Counters of faults in the code, whose limits only fall: prose that hides the actor, long modules, circles, ``Any``.

``tests/ratchets.json`` holds the highest count that is allowed for each. ``python -m tests.ratchets`` prints every
place; ``python -m tests.ratchets --write`` lowers the numbers to what stands now, and never raises one.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent / "mesh"
LIMITS_FILE = Path(__file__).with_name("ratchets.json")
MODULE_LINES = 400
FUNCTION_LINES = 60
PARAMETERS = 6
PUBLIC_PARAMETERS = 12  # of a function of mesh.api; at most PUBLIC_EXCEPTIONS functions have more
PUBLIC_EXCEPTIONS = 3
WIRE = ("mesh.agent", "mesh.protocol", "mesh.remote")
MESSAGE_WORDS = 3  # a string constant of at least this many words counts as text for people

# First words that forbid themselves in docstrings, comments and messages, as they hide the actor.
HIDES_THE_ACTOR = re.compile(r"(What|Who|Whoever|Whether|Of|As|One|Nobody|Somebody|Nothing|Everybody)\b")
# Verbs of people, for what a machine does.
VERBS_OF_PEOPLE = re.compile(
    r"\b(tells?|told|telling|says?|said|saying|hears?|heard|knocks?|minds?|obeys?|obeyed|knows?|knew|known)\b"
)
# Finds the same comments as Python's own tokenizer, in a small part of its time. Prefixes of strings do not matter.
STRING_OR_COMMENT = re.compile(
    r"""\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|(\#[^\n]*)""",
    re.DOTALL,
)
WITHOUT_SUBJECT = re.compile(r"(MOST|LEAST)_\w+|[A-Z]+")  # a number's name: one word, or a bare superlative


@dataclass(frozen=True)
class Module:
    """One source file, parsed."""

    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree, which most counters read."""
        return list(ast.walk(self.tree))

    @cached_property
    def texts(self) -> list[tuple[str, int, str]]:
        """The kind, the line and the text of all that people read."""
        kinds = {"docstring": docstrings, "comment": comments, "message": messages}
        return [(kind, line, text) for kind, read in kinds.items() for line, text in read(self)]

    @cached_property
    def name(self) -> str:
        parts = self.path.relative_to(ROOT.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    def at(self, node: ast.AST | int, text: str = "") -> str:
        line = node if isinstance(node, int) else getattr(node, "lineno", 1)
        return f"{self.path.relative_to(ROOT.parent)}:{line}: {text}".rstrip(": ")


Modules = Mapping[str, Module]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules(root: Path = ROOT) -> dict[str, Module]:
    """All modules of mesh by their names."""
    found = [Module(path, path.read_text()) for path in sorted(root.rglob("*.py"))]
    return {module.name: module for module in found}


def functions(module: Module) -> Iterator[Function]:
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def docstrings(module: Module) -> Iterator[tuple[int, str]]:
    for node in module.nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def comments(module: Module) -> Iterator[tuple[int, str]]:
    """Each comment, its lines joined where several follow each other."""
    block: list[str] = []
    start = last = 0
    for line, text, alone in _single_comments(module.text):
        if block and alone and line == last + 1:
            block.append(text)
        else:
            if block:
                yield start, " ".join(block)
            block, start = [text], line
        last = line if alone else -1
    if block:
        yield start, " ".join(block)


def _single_comments(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the line, the text, and if it has a line of its own, of each comment.

    >>> list(_single_comments("x = '#'  # why\\n# because\\n"))
    [(1, 'why', False), (2, 'because', True)]
    """
    line = place = 0
    for found in STRING_OR_COMMENT.finditer(text):
        if comment := found[1]:
            line += text.count("\n", place, found.start())
            place = found.start()
            before = text[text.rfind("\n", 0, place) + 1 : place]
            yield line + 1, comment.lstrip("# "), not before.strip()


def messages(module: Module) -> Iterator[tuple[int, str]]:
    """String constants that look like text for people, docstrings left out."""
    known = {id(node.value) for node in module.nodes if isinstance(node, ast.Expr)}
    for node in module.nodes:
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in known
        if is_text and len(node.value.split()) >= MESSAGE_WORDS:
            yield node.lineno, node.value


def hidden_actors(all_modules: Modules) -> Iterator[str]:
    """Docstrings, comments and messages that begin with a word that hides the actor."""
    for module in all_modules.values():
        for kind, line, text in module.texts:
            if HIDES_THE_ACTOR.match(text):
                yield module.at(line, f"{kind} {text.splitlines()[0][:80]!r}")


def peoples_verbs(all_modules: Modules) -> Iterator[str]:
    """Docstrings, comments and messages in which a machine tells, says, hears or knows."""
    for module in all_modules.values():
        for kind, line, text in module.texts:
            if found := VERBS_OF_PEOPLE.search(text):
                yield module.at(line, f"{kind}: {found.group()!r} in {text.splitlines()[0][:70]!r}")


def constants_without_subject(all_modules: Modules) -> Iterator[str]:
    """Numbers at the top of a module whose name has no subject or no unit."""
    for module in all_modules.values():
        for node in module.tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant | ast.BinOp):
                value = node.value.value if isinstance(node.value, ast.Constant) else 0
                if isinstance(value, bool) or not isinstance(value, int | float):
                    continue
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
                yield from (module.at(node, name) for name in names if WITHOUT_SUBJECT.fullmatch(name))


def long_modules(all_modules: Modules) -> Iterator[str]:
    for module in all_modules.values():
        if (count := len(module.text.splitlines())) > MODULE_LINES:
            yield module.at(1, f"{count} lines")


def long_functions(all_modules: Modules) -> Iterator[str]:
    for module in all_modules.values():
        for function in functions(module):
            if (count := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES:
                yield module.at(function, f"{function.name}: {count} lines")


def parameters(function: Function) -> int:
    """How many parameters a function has besides self."""
    given = function.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def public_functions(all_modules: Modules) -> set[tuple[str, str]]:
    """Functions that users call from Python: (module, name) of all that ``mesh.api`` exports, and ``multihost``."""
    api = all_modules.get("mesh.api")
    found = set()
    for node in api.nodes if api else ():
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {(node.module, alias.name) for alias in node.names}
    return found | {("mesh.compat.maxtext", "multihost")}  # its parameters are the flags of MaxText's runner


def many_parameters(all_modules: Modules) -> Iterator[str]:
    """Functions with more than PARAMETERS parameters; public ones may have PUBLIC_PARAMETERS, and three even more."""
    public = public_functions(all_modules)
    exceptions = []
    for module in all_modules.values():
        for function in functions(module):
            count = parameters(function)
            if (module.name, function.name) in public:
                if count > PUBLIC_PARAMETERS:
                    exceptions.append(module.at(function, f"{function.name}: {count} parameters"))
            elif count > PARAMETERS:
                yield module.at(function, f"{function.name}: {count} parameters")
    yield from exceptions[PUBLIC_EXCEPTIONS:]


def imports(module: Module, all_modules: Modules) -> set[str]:
    """The modules of mesh that one imports, also under TYPE_CHECKING and inside functions."""
    found = set()
    package = module.name if module.is_package else module.name.rpartition(".")[0]
    for node in module.nodes:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            origin = ".".join(filter(None, (base, node.module or "")))
            names = [f"{origin}.{alias.name}" for alias in node.names]
        for name in names:
            while name and name not in all_modules:
                name = name.rpartition(".")[0]
            # A package that only hands out names of its modules is no way through which modules meet.
            if name and name != module.name and not all_modules[name].is_package:
                found.add(name)
    return found


def circles(all_modules: Modules) -> Iterator[str]:
    """Modules that import each other, directly or through others; one line for each module in a circle."""
    graph = {name: imports(module, all_modules) for name, module in all_modules.items()}
    for group in strongly_connected(graph):
        if len(group) > 1:
            for name in sorted(group):
                others = ", ".join(sorted(graph[name] & group))
                yield all_modules[name].at(1, f"in a circle of {len(group)} with {others}")


def strongly_connected(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Tarjan's algorithm.

    >>> sorted(map(sorted, strongly_connected({"a": {"b"}, "b": {"a"}, "c": {"a"}})))
    [['a', 'b'], ['c']]
    """
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            cut = stack.index(name)
            found.append(set(stack[cut:]))
            del stack[cut:]

    for name in graph:
        if name not in index:
            visit(name)
    return found


def modules_in_strings(all_modules: Modules) -> Iterator[str]:
    """Names of our modules in strings, which hide an import from every check."""
    for module in all_modules.values():
        for node in module.nodes:
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if "." in text and text in all_modules:
                yield module.at(node, text)


def anys(all_modules: Modules) -> Iterator[str]:
    for module in all_modules.values():
        for node in module.nodes:
            if isinstance(node, ast.Name) and node.id == "Any":
                yield module.at(node)


def _near_the_wire(all_modules: Modules) -> Modules:
    """The modules that make, send or read messages."""
    return {name: one for name, one in all_modules.items() if name.startswith(WIRE)}


def anys_near_the_wire(all_modules: Modules) -> Iterator[str]:
    yield from anys(_near_the_wire(all_modules))


def computed_attributes(all_modules: Modules) -> Iterator[str]:
    """Attributes found by a name that is made at run time, as a dispatch by the type of a message would."""
    for module in _near_the_wire(all_modules).values():
        for node in module.nodes:
            match node:
                case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(), *_]):
                    pass
                case ast.Call(func=ast.Name(id="getattr")):
                    yield module.at(node)


COUNTERS: Mapping[str, Callable[[Modules], Iterator[str]]] = {
    "texts that begin with a word that hides the actor": hidden_actors,
    "texts in which a machine has a verb of people": peoples_verbs,
    "constants without subject or unit": constants_without_subject,
    f"modules over {MODULE_LINES} lines": long_modules,
    f"functions over {FUNCTION_LINES} lines": long_functions,
    f"functions over {PARAMETERS} parameters": many_parameters,
    "modules in a circle": circles,
    "module names in strings": modules_in_strings,
    "Any": anys,
    "Any in agent, protocol and remote": anys_near_the_wire,
    "attributes by computed names in agent, protocol and remote": computed_attributes,
}


def counted() -> dict[str, list[str]]:
    """The places that each counter finds."""
    all_modules = modules()
    return {name: sorted(counter(all_modules)) for name, counter in COUNTERS.items()}


def limits() -> dict[str, int]:
    """The highest count that is allowed for each."""
    read: dict[str, int] = json.loads(LIMITS_FILE.read_text())
    return read


def lowered(found: Mapping[str, list[str]], before: Mapping[str, int]) -> dict[str, int]:
    """The limits for what was found: none is higher than before."""
    return {name: min(len(places), before.get(name, len(places))) for name, places in found.items()}


def main() -> None:
    found = counted()
    if "--write" in sys.argv:
        before = limits() if LIMITS_FILE.exists() else {}
        LIMITS_FILE.write_text(json.dumps(lowered(found, before), indent=2) + "\n")
        return
    for name, places in found.items():
        print(f"{len(places)} {name}", *places, sep="\n  ")


if __name__ == "__main__":
    main()
