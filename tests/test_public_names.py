"""One list of public names a package, complete, documented, and cheap."""

import doctest
import importlib
import inspect
import json
import pkgutil
import subprocess
import sys

import pytest

import fastkeras

# Packages with names for the other layers, none of them for users: why.
INTERNAL = {"engine": "users steer it through FastModel and perf="}

# Heavy packages that only a part of the users has; none may be loaded by
# `import fastkeras`.
OPTIONAL = {"keras_tuner", "matplotlib", "pandas", "sklearn", "tensorboard"}


def _public_packages():
    """`fastkeras`, and each package in it that lists public names."""
    inner = [
        importlib.import_module(f"fastkeras.{info.name}")
        for info in pkgutil.iter_modules(fastkeras.__path__)
        if info.ispkg and not info.name.startswith("_")
        if info.name not in INTERNAL
    ]
    return [fastkeras, *(p for p in inner if hasattr(p, "__all__"))]


PACKAGES = _public_packages()
MEMBERS = {
    f"{package.__name__}.{name}": getattr(package, name)
    for package in PACKAGES
    for name in package.__all__
}
CODE = {
    name: member
    for name, member in MEMBERS.items()
    if inspect.isclass(member) or inspect.isfunction(member)
}
MODULES = ["fastkeras"] + [
    info.name
    for info in pkgutil.walk_packages(fastkeras.__path__, "fastkeras.")
]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p.__name__)
def test_the_list_is_sorted_and_complete(package):
    assert package.__all__ == sorted(package.__all__)
    visible = {
        name
        for name, member in vars(package).items()
        if not name.startswith("_") and not inspect.ismodule(member)
    }
    # A submodule is visible as soon as anything imports it, so it is public
    # only by being listed.
    listed = {
        name
        for name in package.__all__
        if not inspect.ismodule(getattr(package, name))
    }
    assert visible == listed - {"__version__"}


@pytest.mark.parametrize("name", MEMBERS)
def test_every_public_module_and_object_has_a_docstring(name):
    member = MEMBERS[name]
    if name in CODE or inspect.ismodule(member):
        assert member.__doc__ and member.__doc__.strip()


@pytest.mark.parametrize("name", CODE)
def test_every_public_object_shows_an_example(name):
    _, heading, text = CODE[name].__doc__.partition("Example:")
    assert heading
    assert doctest.DocTestParser().get_examples(text)


def _makers(member):
    """The functions whose errors the docstring of a member has to name."""
    if not inspect.isclass(member):
        return [member]
    names = {"__new__", "__init__", "__post_init__"} & vars(member).keys()
    found = [getattr(member, name) for name in names]
    # What `dataclass` and `Enum` generate is not written in the file.
    file = inspect.getfile(member)
    return [f for f in found if f.__code__.co_filename == file]


@pytest.mark.parametrize("name", CODE)
def test_what_raises_says_so(name):
    source = "".join(inspect.getsource(f) for f in _makers(CODE[name]))
    if "raise " in source or "checks." in source:
        assert "Raises:" in CODE[name].__doc__


@pytest.mark.parametrize("name", MODULES)
def test_every_example_runs(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_what_is_internal_still_exists_and_is_not_listed():
    names = {info.name for info in pkgutil.iter_modules(fastkeras.__path__)}
    assert INTERNAL.keys() <= names - set(fastkeras.__all__)
    assert len(INTERNAL) < len(PACKAGES)


def test_import_loads_little_more_than_keras_does():
    code = (
        "import json, sys, keras\n"
        "before = set(sys.modules)\n"
        "import fastkeras\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    loaded = json.loads(run.stdout)
    tops = {name.partition(".")[0] for name in loaded}
    assert "fastkeras" in tops
    assert not tops & OPTIONAL
    # Everything else that is new comes with Python itself, or is a part of
    # Keras and TensorFlow that these load late.
    assert (
        tops <= {"fastkeras", "keras", "tensorflow"} | sys.stdlib_module_names
    )
