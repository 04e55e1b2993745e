"""The layout that the code promises, read from its source with `ast`.

Each rule is a function from modules to offenders. A rule that a module has to
break names that module in `EXCEPTIONS` with the reason; an entry that nothing
needs any more fails, and so does a list that has grown to the whole set.
"""

import ast
import dataclasses
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]

# A file imports from its own package and from those with a lower number.
LAYERS = {
    "_lib": 0,
    "measure": 1,
    "data": 1,
    "perf": 2,
    "engine": 3,
    "model": 4,
    "callbacks": 5,
    "advise": 6,
    "bench": 6,
    "debug": 6,
    "tune": 6,
    "distribute": 6,
    "export": 6,
    "__init__": 7,
    "cli": 7,
    "__main__": 8,
}

MOST_LINES = 300
MOST_BODY_LINES = 50

CARD = (
    "Does",
    "When it helps",
    "Mathematics",
    "Cost",
    "Conflicts",
    "Measured",
    "Reference",
)


@dataclasses.dataclass(frozen=True)
class Module:
    """A source file: its path below the root, and its text."""

    path: str
    text: str

    @property
    def tree(self):
        return ast.parse(self.text)

    @property
    def parts(self):
        return pathlib.PurePosixPath(self.path).with_suffix("").parts

    @property
    def unit(self):
        """The name in `LAYERS`: `fastkeras/perf/_plan.py` is in `perf`."""
        return self.parts[1]

    @property
    def docstring(self):
        return ast.get_docstring(self.tree) or ""

    def functions(self):
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node


def modules(*folders):
    """Every Python file below the folders, sorted by path."""
    found = [p for f in folders for p in (ROOT / f).rglob("*.py")]
    return [
        Module(p.relative_to(ROOT).as_posix(), p.read_text(encoding="utf-8"))
        for p in sorted(found)
    ]


def imports(module):
    """Yields `(dotted name, imported name or None)`, made absolute."""
    package = module.parts[:-1]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None
        elif isinstance(node, ast.ImportFrom):
            # One dot is the package of the file, each further one its parent.
            above = package[: len(package) + 1 - node.level]
            names = above if node.level else ()
            origin = ".".join([*names, *filter(None, [node.module])])
            for alias in node.names:
                yield origin, alias.name


def imported_units(module):
    """Yields the names in `LAYERS` that a module imports from."""
    for origin, name in imports(module):
        package, *rest = origin.split(".")
        if package != "fastkeras":
            continue
        if rest:
            yield rest[0]
        else:
            # `from fastkeras import perf` reads the package's own front.
            yield name if name in LAYERS else "__init__"


# The rules. Each takes modules and returns {offender: what is wrong}.


def imports_point_down(mods):
    found = {}
    for module in mods:
        for unit in imported_units(module):
            same = unit == module.unit
            if not same and LAYERS[unit] >= LAYERS[module.unit]:
                found[module.path] = f"{module.unit} imports from {unit}"
    return found


def files_are_short(mods):
    lengths = {m.path: len(m.text.splitlines()) for m in mods}
    return {p: f"{n} lines" for p, n in lengths.items() if n > MOST_LINES}


def bodies_are_short(mods):
    found = {}
    for module in mods:
        for function in module.functions():
            first = function.body[0]
            if ast.get_docstring(function, clean=False) is not None:
                lines = function.end_lineno - first.end_lineno
            else:
                lines = function.end_lineno - first.lineno + 1
            if lines > MOST_BODY_LINES:
                found[f"{module.path}:{function.name}"] = f"{lines} lines"
    return found


def modules_have_docstrings(mods):
    return {m.path: "no module docstring" for m in mods if not m.docstring}


def only_cli_prints(mods):
    return {
        m.path: "calls print"
        for m in mods
        if m.unit != "cli"
        for node in ast.walk(m.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    }


def nothing_asserts(mods):
    return {
        m.path: "uses assert as validation"
        for m in mods
        for node in ast.walk(m.tree)
        if isinstance(node, ast.Assert)
    }


_PRIVATE = re.compile(r"(keras\.src|tensorflow\.python|tf\.python)(\.|$)")


def private_names_have_one_door(mods):
    found = {}
    for module in mods:
        # `private.py` and what it was split into.
        if module.path.startswith("fastkeras/_lib/private"):
            continue
        names = [f"{o}.{n}" if n else o for o, n in imports(module)]
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute):
                names.append(ast.unparse(node))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                # A name handed to importlib.
                names.append(node.value)
        for name in filter(_PRIVATE.match, names):
            found[module.path] = f"reaches for {name}"
    return found


def warnings_have_one_door(mods):
    found = {}
    for module in mods:
        if module.path == "fastkeras/_lib/warn.py":
            continue
        names = {f"{o}.{n}" for o, n in imports(module)}
        names |= {
            ast.unparse(node)
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Attribute)
        }
        if names & {"warnings.warn", "warnings.warn_explicit"}:
            found[module.path] = "warns by itself, not through _lib/warn.py"
    return found


def features(mods):
    """The modules that hold a feature: the public ones in `perf`."""
    return [
        m for m in mods if m.unit == "perf" and not m.parts[-1].startswith("_")
    ]


def features_have_cards(mods):
    found = {}
    for module in features(mods):
        headings = re.findall(
            rf"^({'|'.join(CARD)}): \S", module.docstring, re.MULTILINE
        )
        if tuple(headings) != CARD:
            found[module.path] = f"headings: {headings}"
    return found


def features_have_tests(mods):
    return {
        m.path: "no test file of its own"
        for m in features(mods)
        if not (ROOT / f"tests/perf/test_{m.parts[-1]}.py").is_file()
    }


def recipes_use_public_names(mods):
    """A recipe shows what a user can write: `fastkeras` and its packages."""
    found = {}
    for module in mods:
        for origin, name in imports(module):
            path = [*origin.split("."), *([name] if name else [])]
            private = any(part.startswith("_") for part in path)
            deep = len(origin.split(".")) > 2
            if path[0] == "fastkeras" and (private or deep):
                found[module.path] = f"imports {'.'.join(path)}"
    return found


LIBRARY = (
    imports_point_down,
    files_are_short,
    bodies_are_short,
    modules_have_docstrings,
    only_cli_prints,
    nothing_asserts,
    private_names_have_one_door,
    warnings_have_one_door,
    features_have_cards,
    features_have_tests,
)
RECIPES = (
    files_are_short,
    bodies_are_short,
    modules_have_docstrings,
    nothing_asserts,
    recipes_use_public_names,
)

# rule -> {offender: the reason why it has to break the rule}
EXCEPTIONS = {}


@pytest.mark.parametrize(
    ("folder", "rule"),
    [("fastkeras", rule) for rule in LIBRARY]
    + [("recipes", rule) for rule in RECIPES],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_the_source_keeps_the_rule(folder, rule):
    mods = modules(folder)
    assert mods
    excused = EXCEPTIONS.get(rule, {})
    found = {k: v for k, v in rule(mods).items() if k not in excused}
    assert not found


def faults(rule, excused, mods):
    """What is wrong with the exceptions to one rule."""
    found = [f"{k}: no longer needed" for k in excused.keys() - rule(mods)]
    found += [f"{k}: no reason" for k, why in excused.items() if not why]
    if len(excused) >= len(mods):
        found.append("as long as the set that it is taken from")
    return found


def test_every_exception_is_needed_and_has_a_reason():
    mods = modules("fastkeras", "recipes")
    for rule, excused in EXCEPTIONS.items():
        assert not faults(rule, excused, mods)


@pytest.mark.parametrize(
    ("excused", "complaints"),
    [
        ({"fastkeras/a.py": "A reason."}, []),
        ({"fastkeras/a.py": ""}, ["fastkeras/a.py: no reason"]),
        ({"fastkeras/b.py": "Mended."}, ["fastkeras/b.py: no longer needed"]),
    ],
)
def test_a_bad_exception_is_seen(excused, complaints):
    mods = [Module("fastkeras/a.py", "assert 1"), Module("fastkeras/b.py", "")]
    assert faults(nothing_asserts, excused, mods) == complaints
    (full,) = set(faults(nothing_asserts, excused, mods[:1])) - set(complaints)
    assert full.startswith("as long as")


def test_the_table_names_every_part_of_the_package():
    units = {m.unit for m in modules("fastkeras")}
    assert units <= LAYERS.keys()


# Each rule on a source that breaks it, and on its nearest neighbour that
# doesn't: a rule that can't fail guards nothing.

_LONG_FILE = '"""Doc."""\n' + "x = 1\n" * MOST_LINES
_LONG_BODY = "def f():\n" + "    x = 1\n" * (MOST_BODY_LINES + 1)
_FULL_BODY = 'def f():\n    """Doc.\n\n    More.\n    """\n' + (
    "    x = 1\n" * MOST_BODY_LINES
)
_CARD = "\n\n".join(f"{heading}: words." for heading in CARD)

CONTROLS = [
    (imports_point_down, "perf/a.py", "import fastkeras.engine.feed", False),
    (imports_point_down, "perf/a.py", "from fastkeras import engine", False),
    (imports_point_down, "perf/a.py", "from fastkeras import FastModel", False),
    (imports_point_down, "perf/a.py", "from ..engine import feed", False),
    (imports_point_down, "perf/a.py", "from .. import model", False),
    (imports_point_down, "data/a.py", "from fastkeras import measure", False),
    (imports_point_down, "tune/a.py", "from ..bench import run", False),
    (
        imports_point_down,
        "perf/a.py",
        "def f():\n    from fastkeras.model import FastModel",
        False,
    ),
    (imports_point_down, "perf/a.py", "from ._plan import Plan", True),
    (imports_point_down, "perf/a.py", "from .._lib import checks", True),
    (imports_point_down, "perf/a.py", "from fastkeras import measure", True),
    (imports_point_down, "__init__.py", "from .model import FastModel", True),
    (imports_point_down, "perf/a.py", "import fastkerasish.engine", True),
    (files_are_short, "a.py", _LONG_FILE, False),
    (files_are_short, "a.py", "x = 1\n" * MOST_LINES, True),
    (bodies_are_short, "a.py", _LONG_BODY, False),
    (bodies_are_short, "a.py", _FULL_BODY, True),
    (modules_have_docstrings, "a.py", "# Not a docstring.\n", False),
    (modules_have_docstrings, "a.py", '"""One."""', True),
    (only_cli_prints, "perf/a.py", "def f():\n    print(1)", False),
    (only_cli_prints, "perf/a.py", "pprint(1)\nx.print(1)", True),
    (only_cli_prints, "cli.py", "print(1)", True),
    (nothing_asserts, "a.py", "def f(x):\n    assert x", False),
    (nothing_asserts, "a.py", "self.assertTrue(x)", True),
    (private_names_have_one_door, "a.py", "from keras.src import x", False),
    (private_names_have_one_door, "a.py", "import keras.src.ops", False),
    (private_names_have_one_door, "a.py", "keras.src.ops.add(1, 2)", False),
    (private_names_have_one_door, "a.py", "from keras import src", False),
    (private_names_have_one_door, "a.py", "load('keras.src.ops')", False),
    (
        private_names_have_one_door,
        "a.py",
        "from tensorflow.python.eager import context",
        False,
    ),
    (private_names_have_one_door, "a.py", "from keras import ops", True),
    (
        private_names_have_one_door,
        "_lib/private.py",
        "from keras.src import x",
        True,
    ),
    (warnings_have_one_door, "a.py", "warnings.warn('x')", False),
    (warnings_have_one_door, "a.py", "from warnings import warn", False),
    (warnings_have_one_door, "a.py", "warnings.catch_warnings()", True),
    (warnings_have_one_door, "_lib/warn.py", "warnings.warn('x')", True),
    (features_have_cards, "perf/a.py", '"""Clips."""', False),
    (
        features_have_cards,
        "perf/a.py",
        f'"""Clips.\n\n{_CARD.replace("Cost", "Price")}"""',
        False,
    ),
    (features_have_cards, "perf/a.py", f'"""Clips.\n\n{_CARD}"""', True),
    (features_have_cards, "perf/_a.py", '"""Helper."""', True),
    (features_have_tests, "perf/no_such_feature.py", '"""X."""', False),
    (features_have_tests, "perf/_plan.py", '"""X."""', True),
    (
        recipes_use_public_names,
        "a.py",
        "from fastkeras.perf._plan import Plan",
        False,
    ),
    (recipes_use_public_names, "a.py", "from fastkeras import _lib", False),
    (recipes_use_public_names, "a.py", "import fastkeras.perf.clip", False),
    (
        recipes_use_public_names,
        "a.py",
        "import fastkeras as fk\nfrom fastkeras.measure import ratio",
        True,
    ),
]


@pytest.mark.parametrize(
    ("rule", "path", "text", "kept"),
    CONTROLS,
    ids=[f"{rule.__name__}-{k}" for k, (rule, *_) in enumerate(CONTROLS)],
)
def test_a_rule_sees_what_breaks_it_and_nothing_else(rule, path, text, kept):
    assert (not rule([Module(f"fastkeras/{path}", text)])) is kept


def test_every_rule_has_a_control_of_each_kind():
    for rule in {*LIBRARY, *RECIPES}:
        assert {kept for r, _, _, kept in CONTROLS if r is rule} == {
            True,
            False,
        }
