"""What ``import excise`` gives: names, their types, and nothing heavy before it is needed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import excise

STUB = ast.parse(Path(excise.__file__).with_suffix(".pyi").read_text())
IMPORTS = [node for node in STUB.body if isinstance(node, ast.ImportFrom)]


def modules_after(code):
    """What of torch and scikit-learn is loaded after some code ran in a fresh Python."""
    code = f"import sys; {code}; print(*({{'torch', 'sklearn'}} & set(sys.modules)))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize("code", ["import excise", "from excise import foci, codec", "from excise import InputError"])
def test_import_loads_neither_torch_nor_scikit_learn(code):
    assert modules_after(code) == []


@pytest.mark.slow
def test_unfitting_does_without_torch():
    assert modules_after("from excise import unfit, Unfitter") == ["sklearn"]


@pytest.mark.parametrize("name", excise.__all__)
def test_a_public_name_resolves_to_what_bears_it(name):
    assert getattr(excise, name).__name__ == name


def test_a_public_name_is_typed():
    # a checker re-exports from a stub only what is imported "as" itself, and a __getattr__ would make the rest Any
    exported = [alias.asname for node in IMPORTS for alias in node.names]
    assert sorted(exported) == sorted(excise.__all__)
    assert [alias.name for node in IMPORTS for alias in node.names] == exported
    others = [node for node in STUB.body if not isinstance(node, ast.ImportFrom)]
    assert [ast.unparse(node) for node in others[1:]] == ["__version__: str"]  # the first is the docstring


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="focci"):
        excise.focci  # noqa: B018
    assert "foci" in dir(excise)


def test_the_version_is_written_down_once():
    root = Path(__file__).parents[1]
    assert excise.__version__ not in (root / "pyproject.toml").read_text()


def test_the_api_pages_have_every_public_name_once():
    pages = (Path(__file__).parents[1] / "docs" / "api").glob("*.md")
    lines = [line for page in pages for line in page.read_text().splitlines() if line.startswith("::: excise.")]
    listed = [line.removeprefix("::: excise.") for line in lines]
    assert sorted(name for name in listed if "." not in name) == sorted(excise.__all__)
